"""Register and enrol nodes for a benchmark, by commands to the ledger and with one Redis user per node."""

import secrets
from collections.abc import Sequence
from hashlib import sha256

from control_plane.commands.nodes import register_node
from control_plane.handle import Command, Decision, Transaction
from control_plane.origin import Origin
from control_plane.queues.redis_nodes import NodeLogin, ensure_node_users, ensure_scripts, user_name
from control_plane.settings import SLICE_NETWORKS
from control_plane.wiring import Plane
from deploy.embedded.redis import RedisServer
from events.ledger.append import Change
from events.nodes import NodeEnrolled
from events.values import NodeId, new_uuid, stream_of_node
from node_agent.transport.broker import QueueAddress
from tasks.scripts import namespace_of


async def admit(made: Plane, redis: RedisServer, names: Sequence[NodeId]) -> list[QueueAddress]:
    """Register and enrol nodes with these names. Return the address of each node's task queue."""
    origin = Origin(actor="key:bench", reason="bench", correlation_id=new_uuid())
    addresses = [_address(redis, name) for name in names]
    for name in names:
        await made.handle(register_node(name, secrets.token_hex(16), origin, SLICE_NETWORKS))
        await made.handle(_identify(name, origin))
    await ensure_scripts(made.redis)
    await ensure_node_users(
        made.redis,
        [
            NodeLogin(name, sha256(address.password.encode()).hexdigest())
            for name, address in zip(names, addresses, strict=True)
        ],
    )
    return addresses


def _address(redis: RedisServer, name: NodeId) -> QueueAddress:
    return QueueAddress(redis.address, redis.port, user_name(name), secrets.token_hex(16), namespace_of(name))


def _identify(name: NodeId, origin: Origin) -> Command:
    async def command(transaction: Transaction) -> Decision:
        fact = NodeEnrolled(name, "a public key", f"key of {name}", 1, "bench")
        return Decision((Change(stream_of_node(name), 1, (fact,)),), origin.at(transaction.now))

    return command
