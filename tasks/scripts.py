"""The Lua scripts that move orders in Redis, and the keys that they use.

A node's queue consists of five keys of its namespace. `slices` is the list of waiting order ids, oldest first;
`slices.messages` maps an id to its bytes from enqueueing until the task is finished or withdrawn; `slices.held` maps an
id to the worker that fetched it; `slices.deliveries` counts the deliveries of each id, and maps `reply:<worker>` to the
ids of the worker's last fetch that it has neither finished nor requeued; `workers` contains the live workers, scored by
their last heartbeat.

Each script is one atomic step, so a crash leaves an id waiting, held, or gone, and never in between. The time is always
that of Redis: no other clock decides whether a worker is dead. Scripts get every key that they use in KEYS, because a
node's user may access only the keys of its namespace, inside a script as outside.

Every script that a node runs reads a bounded amount of data, whatever the node wrote under its keys
([0032](../docs/decisions/0032-a-node-pays-for-what-it-costs.md)). The control plane and the nodes run scripts by
digest. Only the control plane can load them.
"""

import hashlib
from dataclasses import dataclass
from functools import cached_property
from typing import Final

DEFAULT_QUEUE: Final = "slices"
WORKER_TIMEOUT: Final = 15.0
"""Seconds without a heartbeat after which a worker loses the orders that it has fetched and not finished. Nodes send
three heartbeats within this time, and the control plane requeues the orders after it.
"""


def namespace_of(node_id: str) -> str:
    return f"ctl:{node_id}"


@dataclass(frozen=True, slots=True)
class QueueKeys:
    """Names of the Redis keys of one node's queue."""

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
    """A script and the digest by which Redis identifies it (EVALSHA)."""

    name: str
    source: str

    @cached_property
    def sha(self) -> str:
        return hashlib.sha1(self.source.encode(), usedforsecurity=False).hexdigest()


MAX_ARGUMENTS: Final = 1024
"""Maximum number of arguments of a command about one queue: four times the number of ids that the queue may hold."""
LARGEST_MESSAGE: Final = 128 * 1024
"""Maximum size of an order in bytes; the largest order of the catalogue is smaller."""
REPLY_BYTES: Final = 1024 * 1024
"""Size of a reply in bytes at which a fetch adds no further order to the reply; the worker's next fetch gets the
others."""
MAX_IDS_READ: Final = 64
"""Maximum number of waiting ids that one fetch reads."""
LONGEST_REPLY: Final = 16 * 1024
"""Maximum size in bytes of the ids in one reply together."""

_OPENING: Final = f"""\
if #KEYS ~= 5 or #ARGV > {MAX_ARGUMENTS} then return redis.error_reply('ERR too many arguments') end
local waiting, messages, held, deliveries, workers = unpack(KEYS)
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
"""

_ALIVE: Final = """\
local function alive(worker, timeout)
  local last_beat = redis.call('ZSCORE', workers, worker)
  return last_beat and now - last_beat < timeout
end
"""

_ANSWERED: Final = f"""\
-- The worker sent these ids, so it received the reply that contained them.
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
-- Arguments: bound, worker timeout (ms), then an id and its bytes for each five of KEYS.
-- Reserved for the control plane: a node's user has no permission for EXISTS, so the script ends here for a node.
redis.call('EXISTS', KEYS[1])
local bound, timeout = tonumber(ARGV[1]), tonumber(ARGV[2])
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)

local function enqueue(waiting, messages, held, deliveries, workers, id, bytes)
  local holder = redis.call('HGET', held, id)
  if holder then
    local last_beat = redis.call('ZSCORE', workers, holder)
    if last_beat and now - last_beat < timeout then
      -- The node controls this score and may set it arbitrarily far in the future.
      return 'in_flight ' .. math.min(timeout, timeout - (now - last_beat)) .. ' ' .. holder
    end
  end
  local known = redis.call('HEXISTS', messages, id) == 1
  if bytes == '' then return known and not holder and 'waiting' or 'gone' end
  if holder then
    -- Push to the head: it was fetched before everything that waits now.
    redis.call('HDEL', held, id)
    redis.call('HSET', messages, id, bytes)
    redis.call('LPUSH', waiting, id)
    return 'requeued ' .. holder
  end
  if known then
    -- The newer bytes replace the older: a copy signed later expires later.
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
  -- An error caused by one node's data is the answer for its own order only.
  local fine, answer = pcall(
    enqueue, KEYS[key], KEYS[key + 1], KEYS[key + 2], KEYS[key + 3], KEYS[key + 4], ARGV[arg], ARGV[arg + 1]
  )
  answers[i] = fine and answer or 'refused ' .. (type(answer) == 'table' and answer.err or tostring(answer))
end
return answers
""",
)
"""Enqueue orders, each unless it is waiting or held by a live worker.

An order without bytes is only looked up. If a live worker holds an order, the answer includes the time in ms after
which the worker counts as dead without another heartbeat.
"""

WITHDRAW: Final = Script(
    "withdraw",
    _OPENING
    + _ALIVE
    + """\
-- Arguments: id, worker timeout (ms).
local id, timeout = ARGV[1], tonumber(ARGV[2])
local holder = redis.call('HGET', held, id)
if holder and alive(holder, timeout) then return 'in_flight' end
redis.call('HDEL', held, id)
redis.call('HDEL', deliveries, id)
-- An id that stays in the list is dropped by the next fetch, because it has no message. The node may have made the list long.
if redis.call('LLEN', waiting) <= 1024 then redis.call('LREM', waiting, 1, id) end
if redis.call('HDEL', messages, id) == 1 then return 'withdrawn' end
return 'absent'
""",
)
"""Remove an order from the queue, unless it is in flight."""

STRANDED: Final = Script(
    "stranded",
    _OPENING
    + _ALIVE
    + """\
-- Arguments: bound, worker timeout (ms).
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
"""Return the ids of orders that dead workers have fetched and not finished, and delete the names of dead workers.

The node may write anything under its keys, and Redis is blocked while a script runs: if a node's keys have more entries
than were ever sent to the node, the script reads none of them and returns `flooded`.
"""

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
"""Return the bytes that keys occupy, and the number of entries of the key that has the most; a node may have given a
key any type.

The size is exact for up to 1024 entries per key and sampled beyond, where precision no longer matters.
"""

FETCH: Final = Script(
    "fetch",
    _OPENING
    + f"""\
-- Arguments: worker, maximum number of orders, then the ids that the worker has in flight.
local worker, room, last = ARGV[1], tonumber(ARGV[2]), 'reply:' .. ARGV[1]
redis.call('ZADD', workers, now, worker)
local known, got, ids, size = {{}}, {{}}, {{}}, 0
for i = 3, #ARGV do known[ARGV[i]] = true end

-- Returns nil for an id without a message, and for a message larger than any order: the node wrote it itself.
local function message(id)
  local length = redis.call('HSTRLEN', messages, id)
  if length == 0 or length > {LARGEST_MESSAGE} then return nil end
  size = size + length
  return redis.call('HGET', messages, id)
end

-- Ids of a reply that never reached this worker: without this loop they would stay held by a live worker that has not
-- received them, until it restarts. Their delivery was counted when the reply was sent.
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

-- An id may be left over from an order that was settled or withdrawn; the number of ids read is limited.
local looks = 0
while #got < room and size < {REPLY_BYTES} and looks < {MAX_IDS_READ} do
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
"""Deliver at most a given number of orders to a worker, as `[id, bytes, deliveries]` each."""

SETTLE: Final = Script(
    "settle",
    _OPENING
    + _ANSWERED
    + """\
-- Arguments: worker, id.
local worker, id = ARGV[1], ARGV[2]
local holder = redis.call('HGET', held, id)
if holder and holder ~= worker then return 0 end
redis.call('HDEL', held, id)
-- If Redis lost the hold during execution and the order was queued again, its id stays in the list without a message:
-- the next fetch drops it.
redis.call('HDEL', deliveries, id)
answered(worker, {[id] = true})
return redis.call('HDEL', messages, id)
""",
)
"""Delete an order that its worker has finished. Returns 0 if another worker holds it."""

REQUEUE: Final = Script(
    "put_back",
    _OPENING
    + _ANSWERED
    + """\
-- Arguments: worker, then ids, oldest first.
local worker, gone = ARGV[1], {}
for i = #ARGV, 2, -1 do
  local id = ARGV[i]
  gone[id] = true
  if redis.call('HGET', held, id) == worker then
    redis.call('HDEL', held, id)
    redis.call('LPUSH', waiting, id)
    -- Fetched but never begun: it cannot have crashed the worker, so the delivery does not count.
    if redis.call('HINCRBY', deliveries, id, -1) < 1 then redis.call('HDEL', deliveries, id) end
  end
end
answered(worker, gone)
""",
)
"""Requeue orders that a worker fetched and did not begin."""

BEAT: Final = Script("beat", _OPENING + "redis.call('ZADD', workers, now, ARGV[1])\n")
"""Record the heartbeat of a worker."""

LEAVE: Final = Script(
    "leave",
    _OPENING
    + """\
-- Arguments: worker.
redis.call('HDEL', deliveries, 'reply:' .. ARGV[1])
redis.call('ZREM', workers, ARGV[1])
""",
)
"""Unregister a worker: orders that it still holds may be given to another worker at once."""

NODE_SCRIPTS: Final = (FETCH, SETTLE, REQUEUE, BEAT, LEAVE)
ALL_SCRIPTS: Final = (ENQUEUE, WITHDRAW, STRANDED, WEIGH, *NODE_SCRIPTS)

NODE_COMMANDS: Final = (
    # The connection itself. CLIENT SETINFO is not listed, because Redis before 7.2 refuses a rule that names it.
    *("auth", "hello", "ping", "client|setname", "evalsha", "blmove"),
    # The commands of the scripts above: Redis checks them against the permissions of the user that runs the script. The
    # run time of each is independent of the size of its key: a node may have filled its keys, and Redis executes one
    # command at a time for all nodes.
    *("time", "lpop", "lpush", "hget", "hset", "hdel", "hincrby", "hstrlen"),
    *("zadd", "zrem"),
)
"""All commands that a node's user may execute, on its own keys."""
