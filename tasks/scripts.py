"""The Lua scripts that move orders in Redis, and the keys they move them between.

A node's queue lives in five keys of its namespace. `slices` is the list of waiting order ids, oldest first;
`slices.messages` maps an id to its bytes from the moment it is queued until it is settled; `slices.held` maps an id
to the worker that fetched it; `slices.deliveries` counts how often it was fetched, and maps `reply:<worker>` to the ids
of the worker's last reply that it did not settle yet; `workers` holds the live workers, scored by when they last beat.

Each script is one atomic step, so a crash leaves an id waiting, held, or gone, and never between. The time is
always Redis's own: nobody else's clock decides whether a worker is dead. Scripts get every key they touch in KEYS,
because a node's user may name no key but those of its namespace, inside a script as outside.

Every script that a node runs is bounded in what it looks at, whatever the node wrote under its keys
([0032](../docs/decisions/0032-a-node-pays-for-what-it-costs.md)). Both sides run scripts by digest. Only the control
plane can load them.
"""

import hashlib
from dataclasses import dataclass
from functools import cached_property
from typing import Final

DEFAULT_QUEUE: Final = "slices"
WORKER_TIMEOUT: Final = 15.0
"""How long a silent worker keeps what it holds, in seconds: a contract of nodes, which beat three times within it, and
the control plane, which takes orders back after it."""


def namespace_of(node_id: str) -> str:
    return f"ctl:{node_id}"


@dataclass(frozen=True, slots=True)
class QueueKeys:
    """The names of one queue's keys."""

    waiting: str
    messages: str
    held: str
    deliveries: str
    workers: str

    @classmethod
    def of(cls, namespace: str, queue: str = DEFAULT_QUEUE) -> "QueueKeys":
        name = f"{namespace}:{queue}"
        return cls(name, f"{name}.messages", f"{name}.held", f"{name}.deliveries", f"{namespace}:workers")

    def all(self) -> tuple[str, str, str, str, str]:
        return (self.waiting, self.messages, self.held, self.deliveries, self.workers)


@dataclass(frozen=True)
class Script:
    """A script and the digest Redis knows it by (EVALSHA)."""

    name: str
    source: str

    @cached_property
    def sha(self) -> str:
        return hashlib.sha1(self.source.encode(), usedforsecurity=False).hexdigest()


MOST_WORDS: Final = 1024
"""Of a command about one queue: four times the ids that it may hold."""
LARGEST_MESSAGE: Final = 128 * 1024
"""Maximum size of an order in bytes; the largest order of the catalogue is smaller."""
REPLY_BYTES: Final = 1024 * 1024
"""Size of a reply after which a fetch adds no further order; the worker fetches the others next."""
MOST_LOOKS: Final = 64
"""Maximum number of waiting ids that one fetch reads."""
LONGEST_REPLY: Final = 16 * 1024
"""Maximum size in bytes of the ids of one reply."""

_OPENING: Final = f"""\
if #KEYS ~= 5 or #ARGV > {MOST_WORDS} then return redis.error_reply('ERR more words than work could bring') end
local waiting, messages, held, deliveries, workers = unpack(KEYS)
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
"""

_ALIVE: Final = """\
local function alive(worker, timeout)
  local heard = redis.call('ZSCORE', workers, worker)
  return heard and now - heard < timeout
end
"""

_ANSWERED: Final = f"""\
-- The worker names these ids, so it received the reply that had them.
local function answered(worker, gone)
  local last, ids = 'reply:' .. worker, {{}}
  local length = redis.call('HSTRLEN', deliveries, last)
  if length == 0 or length > {LONGEST_REPLY} then return end
  for each in string.gmatch(redis.call('HGET', deliveries, last), '%S+') do
    if not gone[each] then ids[#ids + 1] = each end
  end
  if #ids > 0 then
    redis.call('HSET', deliveries, last, table.concat(ids, ' '))
  else
    redis.call('HDEL', deliveries, last)
  end
end
"""

ENQUEUE: Final = Script(
    "enqueue",
    """\
-- bound, worker timeout (ms), then an id and its bytes for each five of KEYS
-- For the control plane: a node, which may not say EXISTS, gets no further, however many words it brings.
redis.call('EXISTS', KEYS[1])
local bound, timeout = tonumber(ARGV[1]), tonumber(ARGV[2])
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)

local function enqueue(waiting, messages, held, deliveries, workers, id, bytes)
  local holder = redis.call('HGET', held, id)
  if holder then
    local heard = redis.call('ZSCORE', workers, holder)
    if heard and now - heard < timeout then
      -- The node may have written that it will be heard at the end of time.
      return 'in_flight ' .. math.min(timeout, timeout - (now - heard)) .. ' ' .. holder
    end
  end
  local known = redis.call('HEXISTS', messages, id) == 1
  if bytes == '' then return known and not holder and 'waiting' or 'gone' end
  if holder then
    -- To the head: it was fetched before everything that waits now.
    redis.call('HDEL', held, id)
    redis.call('HSET', messages, id, bytes)
    redis.call('LPUSH', waiting, id)
    return 'requeued ' .. holder
  end
  if known then
    -- The newer bytes win: the same order, signed again, may outlive the copy that waits.
    redis.call('HSET', messages, id, bytes)
    return 'waiting'
  end
  local depth = redis.call('HLEN', messages)
  if depth >= bound then return 'full ' .. depth end
  redis.call('HSET', messages, id, bytes)
  redis.call('RPUSH', waiting, id)
  return 'enqueued ' .. depth + 1
end

local answers = {}
for i = 1, #KEYS / 5 do
  local key, arg = 5 * i - 4, 2 * i + 1
  -- What one node spoilt is the answer for its own order alone.
  local fine, answer = pcall(
    enqueue, KEYS[key], KEYS[key + 1], KEYS[key + 2], KEYS[key + 3], KEYS[key + 4], ARGV[arg], ARGV[arg + 1]
  )
  answers[i] = fine and answer or 'refused ' .. (type(answer) == 'table' and answer.err or tostring(answer))
end
return answers
""",
)
"""Put orders on their queues, each unless it is there, or with a worker that lives.

An order without bytes is only looked for. Of a worker that lives, the answer also says for how long (ms) it may be
silent from now on."""

WITHDRAW: Final = Script(
    "withdraw",
    _OPENING
    + _ALIVE
    + """\
-- id, worker timeout (ms)
local id, timeout = ARGV[1], tonumber(ARGV[2])
local holder = redis.call('HGET', held, id)
if holder and alive(holder, timeout) then return 'in_flight' end
redis.call('HDEL', held, id)
redis.call('HDEL', deliveries, id)
-- An id that stays is dropped by the next fetch, because it has no message. The node may have made the list long.
if redis.call('LLEN', waiting) <= 1024 then redis.call('LREM', waiting, 1, id) end
if redis.call('HDEL', messages, id) == 1 then return 'withdrawn' end
return 'absent'
""",
)
"""Take back an order that nobody is working on."""

STRANDED: Final = Script(
    "stranded",
    _OPENING
    + _ALIVE
    + """\
-- bound, worker timeout (ms)
local bound, timeout = tonumber(ARGV[1]), tonumber(ARGV[2])
-- Each worker of an agent that crashes repeatedly leaves its name and the ids of its last reply.
for _, worker in ipairs(redis.call('ZRANGEBYSCORE', workers, '-inf', now - timeout, 'LIMIT', 0, bound)) do
  redis.call('HDEL', deliveries, 'reply:' .. worker)
end
redis.call('ZREMRANGEBYSCORE', workers, '-inf', now - timeout)
if redis.call('HLEN', held) > bound then return 'flooded' end
local found = {}
local holds = redis.call('HGETALL', held)
for i = 1, #holds, 2 do
  if not alive(holds[i + 1], timeout) then found[#found + 1] = holds[i] end
end
return found
""",
)
"""The ids of orders whose worker is dead; the names of dead workers go.

A node may write what it likes there, and everybody waits for a script: of more than was ever sent nothing is read."""

WEIGH: Final = Script(
    "weigh",
    """\
local lengths = {list = 'LLEN', hash = 'HLEN', zset = 'ZCARD'}
local bytes, longest = 0, 0
for _, key in ipairs(KEYS) do
  local size = redis.call('MEMORY', 'USAGE', key, 'SAMPLES', 1024)
  if size then
    bytes = bytes + size
    longest = math.max(longest, redis.call(lengths[redis.call('TYPE', key).ok], key))
  end
end
return {bytes, longest}
""",
)
"""Bytes that keys take, and the entries of the longest, whichever of their types a node made them.

Exact for up to 1024 entries a key, and no dearer for more: then the number says enough."""

FETCH: Final = Script(
    "fetch",
    _OPENING
    + f"""\
-- worker, how many, then the ids that the worker knows it holds
local worker, room, last = ARGV[1], tonumber(ARGV[2]), 'reply:' .. ARGV[1]
redis.call('ZADD', workers, now, worker)
local known, got, ids, size = {{}}, {{}}, {{}}, 0
for i = 3, #ARGV do known[ARGV[i]] = true end

-- nil for an id without a message, and for one of a size that no order has: the node wrote it itself.
local function message(id)
  local length = redis.call('HSTRLEN', messages, id)
  if length == 0 or length > {LARGEST_MESSAGE} then return nil end
  size = size + length
  return redis.call('HGET', messages, id)
end

-- Ids given to this worker in a reply that never reached it: without this they would stay with a worker that
-- lives and does not know of them, until it restarts. They were counted when they were first given.
local length = redis.call('HSTRLEN', deliveries, last)
if length > 0 and length <= {LONGEST_REPLY} then
  for id in string.gmatch(redis.call('HGET', deliveries, last), '%S+') do
    if not known[id] and redis.call('HGET', held, id) == worker then
      local bytes = message(id)
      if bytes then
        got[#got + 1] = {{id, bytes, tonumber(redis.call('HGET', deliveries, id) or 1)}}
        ids[#ids + 1] = id
      else
        redis.call('HDEL', held, id)
      end
    end
  end
end

-- An id may be left over from an order that was settled or taken back; of those only so many are looked at.
local looks = 0
while #got < room and size < {REPLY_BYTES} and looks < {MOST_LOOKS} do
  looks = looks + 1
  local id = redis.call('LPOP', waiting)
  if not id then break end
  local bytes = redis.call('HGET', held, id) ~= worker and message(id)
  if bytes then
    redis.call('HSET', held, id, worker)
    -- An order that this worker already has in flight is returned to it without counting a delivery.
    got[#got + 1] = {{id, bytes, redis.call('HINCRBY', deliveries, id, known[id] and 0 or 1)}}
    ids[#ids + 1] = id
  end
end
if #ids > 0 then
  redis.call('HSET', deliveries, last, table.concat(ids, ' '))
elseif length > 0 then
  redis.call('HDEL', deliveries, last)
end
return got
""",
)
"""Give a worker up to so many orders: `[id, bytes, deliveries]` each."""

SETTLE: Final = Script(
    "settle",
    _OPENING
    + _ANSWERED
    + """\
-- worker, id
local worker, id = ARGV[1], ARGV[2]
local holder = redis.call('HGET', held, id)
if holder and holder ~= worker then return 0 end
redis.call('HDEL', held, id)
-- Where Redis lost the hold while the order was carried out, and it was queued again, its id stays in the list, without
-- a message: the next fetch drops it.
redis.call('HDEL', deliveries, id)
answered(worker, {[id] = true})
return redis.call('HDEL', messages, id)
""",
)
"""Forget an order that its worker is done with, for good or ill. 0: it was not this worker's any more."""

PUT_BACK: Final = Script(
    "put_back",
    _OPENING
    + _ANSWERED
    + """\
-- worker, then ids, oldest first
local worker, gone = ARGV[1], {}
for i = #ARGV, 2, -1 do
  local id = ARGV[i]
  gone[id] = true
  if redis.call('HGET', held, id) == worker then
    redis.call('HDEL', held, id)
    redis.call('LPUSH', waiting, id)
    -- Fetched but never begun: not a delivery that could have hurt anybody.
    if redis.call('HINCRBY', deliveries, id, -1) < 1 then redis.call('HDEL', deliveries, id) end
  end
end
answered(worker, gone)
""",
)
"""Return orders that a worker fetched and did not begin."""

BEAT: Final = Script("beat", _OPENING + "redis.call('ZADD', workers, now, ARGV[1])\n")
"""Record the heartbeat of a worker."""

LEAVE: Final = Script(
    "leave",
    _OPENING
    + """\
-- worker
redis.call('HDEL', deliveries, 'reply:' .. ARGV[1])
redis.call('ZREM', workers, ARGV[1])
""",
)
"""Say that a worker is gone: what it still holds is free to be given to another at once."""

NODE_SCRIPTS: Final = (FETCH, SETTLE, PUT_BACK, BEAT, LEAVE)
ALL_SCRIPTS: Final = (ENQUEUE, WITHDRAW, STRANDED, WEIGH, *NODE_SCRIPTS)

NODE_COMMANDS: Final = (
    # The connection itself. CLIENT SETINFO is left out: Redis before 7.2 refuses a rule that names it.
    *("auth", "hello", "ping", "client|setname", "evalsha", "blmove"),
    # The commands of the scripts above: Redis checks them against the rights of the user that runs the script. The time
    # of each is independent of the size of its key: a node may have filled its keys, and Redis executes one command at
    # a time for all nodes.
    *("time", "lpop", "lpush", "hget", "hset", "hdel", "hincrby", "hstrlen"),
    *("zadd", "zrem"),
)
"""All that a node's user may do, within its own keys."""
