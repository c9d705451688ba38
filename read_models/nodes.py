"""`read.node`: one row per node with its current state. Enrolment and authentication use it, so it is written in the
transaction that appends the node's events to the ledger.
"""

from collections.abc import Collection, Mapping
from datetime import datetime
from types import MappingProxyType
from typing import Any, Final, assert_never

import msgspec
import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import ARRAY, JSONB
from sqlalchemy.ext.asyncio import AsyncConnection

from events.ledger.tables import metadata
from events.nodes import (
    DEFAULT_BRIDGE,
    AgentSuperseded,
    EnrolmentReopened,
    MacPool,
    NodeAddressesChanged,
    NodeBringUpFailed,
    NodeBringUpSucceeded,
    NodeCordoned,
    NodeDegraded,
    NodeDrainEnded,
    NodeDrainStarted,
    NodeEnrolled,
    NodeExcluded,
    NodeFact,
    NodeHeadRefused,
    NodeInspected,
    NodeNetwork,
    NodeNetworkChanged,
    NodeReadmitted,
    NodeRecovered,
    NodeRegistered,
    NodeRemoved,
    NodeRepaired,
    NodeReportsResumed,
    NodeReportsThrottled,
    NodeRevoked,
    NodeUncordoned,
    PublicAddress,
)
from events.orders import MessageRefused, OrderFact, OrderRefused
from events.values import Ipv4Subnet, NetworkMode, NodeId
from read_models.bring_ups import bring_up_columns, bring_up_values, excluded_in, failures_in
from read_models.drift import drift_columns, drift_in
from read_models.pages import keyset
from read_models.rows import Patch

node = sa.Table(
    "node",
    metadata,
    sa.Column("node_id", sa.Text, primary_key=True),
    sa.Column("version", sa.BigInteger, nullable=False),
    sa.Column("state", sa.Text, nullable=False),
    sa.Column("subnet", sa.Text, nullable=False),
    sa.Column("l2_domain", sa.Text, nullable=False),
    sa.Column("bridge", sa.Text),
    sa.Column("mac_pool", JSONB(none_as_null=True)),
    sa.Column("token_sha256", sa.Text, nullable=False),
    sa.Column("token_expires_at", sa.DateTime(timezone=True), nullable=False),
    sa.Column("public_key", sa.Text),
    sa.Column("key_thumbprint", sa.Text),
    sa.Column("agent_version", sa.Text),
    sa.Column("hostname", sa.Text),
    sa.Column("simulated", sa.Boolean),
    sa.Column("images", ARRAY(sa.Text)),
    sa.Column("missing", ARRAY(sa.Text)),
    sa.Column("unsupported_modes", JSONB, nullable=False, server_default=sa.text("'{}'")),
    sa.Column("superseded_session", sa.BigInteger),
    sa.Column("superseded_at", sa.DateTime(timezone=True)),
    sa.Column("revoked", sa.Text),
    sa.Column("drift", JSONB(none_as_null=True)),
    sa.Column("blocked", sa.Boolean, nullable=False, server_default=sa.false()),
    sa.Column("throttled_at", sa.DateTime(timezone=True)),
    sa.Column("public_addresses", JSONB, nullable=False, server_default=sa.text("'[]'")),
    *bring_up_columns(),
    sa.Column("cordoned", sa.Text),
    sa.Column("drain", JSONB(none_as_null=True)),
    sa.Column("drain_ended", JSONB(none_as_null=True)),
    sa.Index("node_excluded", "node_id", postgresql_where=sa.text("excluded is not null")),
    sa.Index("node_drifting", "node_id", postgresql_where=sa.text("drift is not null")),
    schema="read",
)


REMOVED: Final = "removed"
_OPEN: Final[Mapping[str, object]] = MappingProxyType(dict.fromkeys(("cordoned", "drain", "drain_ended")))
"""Values of the columns about cordon and drain of a node that is not cordoned."""


class NodeRow:
    """The row of a node in `read.node`. States: registered, enrolled, revoked, removed.

    The row of a removed node stays in the table, because its stream continues if the name is registered again.
    `network` are the settings that slots get at their approval. `public_key` and `key_thumbprint` are None while the
    node has no access; `missing` (capabilities that the host lacks) is None before the node first described itself.
    `unsupported_modes` are the network modes that slices on the node cannot have, each with the reason.
    `drift` is the open drift that concerns all of its slots; `public_addresses` were assigned by an admin. `failures`
    are the failed starts of slices (bring-ups) on the node since the last success; `excluded` is the reason why the
    node is excluded from placement. `superseded_session` is the number of the session that a copy of the node's disk
    presented and that was refused, and `superseded_at` the time; both describe the last refusal since the enrolment.
    `revoked` is the reason why its access was revoked.
    `throttled_at` is the time at which the node exceeded its report budget; None while it is not throttled. `cordoned`
    is the reason why an admin closed the node for new placements. `drain` is the last drain since the node was
    cordoned, and `drain_ended` its end; None while it runs.
    """

    def __init__(self, row: Mapping[Any, Any]) -> None:
        self.node_id = NodeId(row["node_id"])
        self.version: int = row["version"]
        self.state: str = row["state"]
        self.subnet = Ipv4Subnet(row["subnet"])
        self.l2_domain: str = row["l2_domain"]
        pool = msgspec.convert(row["mac_pool"], MacPool | None)
        self.network = NodeNetwork(row["bridge"] or DEFAULT_BRIDGE, self.l2_domain, pool)
        self.token_sha256: str = row["token_sha256"]
        self.token_expires_at: datetime = row["token_expires_at"]
        self.public_key: str | None = row["public_key"]
        self.key_thumbprint: str | None = row["key_thumbprint"]
        self.agent_version: str | None = row["agent_version"]
        self.hostname: str | None = row["hostname"]
        self.simulated: bool | None = row["simulated"]
        self.images: tuple[str, ...] | None = None if row["images"] is None else tuple(row["images"])
        self.missing: tuple[str, ...] | None = None if row["missing"] is None else tuple(row["missing"])
        self.unsupported_modes: Mapping[NetworkMode, str] = row["unsupported_modes"] or {}
        self.superseded_session: int | None = row["superseded_session"]
        self.superseded_at: datetime | None = row["superseded_at"]
        self.revoked: str | None = row["revoked"]
        self.drift = drift_in(row["drift"])
        self.failures, self.excluded = failures_in(row["failures"]), excluded_in(row["excluded"])
        self.throttled_at: datetime | None = row["throttled_at"]
        self.public_addresses = msgspec.convert(row["public_addresses"] or (), tuple[PublicAddress, ...])
        self.cordoned: str | None = row["cordoned"]
        self.drain = msgspec.convert(row["drain"], NodeDrainStarted | None)
        self.drain_ended = msgspec.convert(row["drain_ended"], NodeDrainEnded | None)

    @property
    def running_drain(self) -> NodeDrainStarted | None:
        """The drain of the node that has not ended; None if there is none."""
        return self.drain if self.drain_ended is None else None


def patch(version: int, fact: NodeFact | OrderFact) -> Patch:
    """Return the patch that a fact applies to the row of its node. `version` is the fact's version in its stream."""
    match fact:
        case NodeRegistered():
            fields = {name: getattr(fact, name) for name in fact.__struct_fields__ if name != "node_id"}
            # All values are in `columns`: a name that was removed and is registered again already has a row.
            return Patch(fact.node_id, {"version": version, "state": "registered", **fields}, {})
        case EnrolmentReopened():
            return _patch(fact, version, "token_sha256", "token_expires_at", state="registered")
        case NodeRemoved():
            return _patch(fact, version, state=REMOVED, bridge=None, mac_pool=None, **_OPEN)
        case NodeEnrolled():
            keys = ("public_key", "key_thumbprint", "agent_version")
            cleared = dict.fromkeys(("superseded_session", "superseded_at", "revoked"))
            return _patch(fact, version, *keys, state="enrolled", **cleared)
        case AgentSuperseded(presented_session=session, presented_at=at):
            return _patch(fact, version, superseded_session=session, superseded_at=at)
        case NodeRevoked(reason=reason):
            return _patch(
                fact, version, state="revoked", revoked=reason, public_key=None, key_thumbprint=None
            )
        case NodeRepaired() | OrderRefused() | MessageRefused() | NodeHeadRefused():
            return _patch(fact, version)
        case NodeBringUpFailed() | NodeBringUpSucceeded() | NodeExcluded() | NodeReadmitted():
            return _patch(fact, version, **bring_up_values(fact))
        case NodeCordoned() | NodeUncordoned() | NodeDrainStarted() | NodeDrainEnded():
            return _patch(fact, version, **_cordon_columns(fact))
        case _:
            return _described(version, fact)


def _described(
    version: int,
    fact: NodeInspected
    | NodeAddressesChanged
    | NodeNetworkChanged
    | NodeDegraded
    | NodeRecovered
    | NodeReportsThrottled
    | NodeReportsResumed,
) -> Patch:
    """Return the patch that a fact about a node's description, addresses, drift or report budget applies to the node's
    row.
    """
    match fact:
        case NodeInspected():
            described = _patch(fact, version, "hostname", "agent_version", "simulated")
            lists = {"images": list(fact.images), "missing": list(fact.missing)}
            modes = {each.mode: each.reason for each in fact.unsupported_modes}
            return described._replace(columns={**described.columns, **lists, "unsupported_modes": modes})
        case NodeAddressesChanged(addresses=addresses):
            return _patch(fact, version, public_addresses=msgspec.to_builtins(addresses))
        case NodeNetworkChanged(network=network):
            return _patch(fact, version, **msgspec.to_builtins(network))
        case NodeDegraded(drift=drift):
            return _patch(fact, version, **drift_columns(drift))
        case NodeRecovered():
            return _patch(fact, version, **drift_columns(()))
        case NodeReportsThrottled(since=since):
            return _patch(fact, version, throttled_at=since)
        case NodeReportsResumed():
            return _patch(fact, version, throttled_at=None)
        case _:
            assert_never(fact)


def _cordon_columns(
    fact: NodeCordoned | NodeUncordoned | NodeDrainStarted | NodeDrainEnded,
) -> Mapping[str, object]:
    match fact:
        case NodeCordoned(reason=reason):
            return {"cordoned": reason}
        case NodeUncordoned():
            return _OPEN
        case NodeDrainStarted():
            return {"drain": msgspec.to_builtins(fact), "drain_ended": None}
        case NodeDrainEnded():
            return {"drain_ended": msgspec.to_builtins(fact)}
        case _:
            assert_never(fact)


def _patch(fact: NodeFact | OrderFact, version: int, *same: str, **further: object) -> Patch:
    columns = {"version": version, **{name: getattr(fact, name) for name in same}, **further}
    return Patch(fact.node_id, columns)


async def find(conn: AsyncConnection, node_id: NodeId, *, lock: bool = False) -> NodeRow | None:
    """Return a registered node; None if the name was never registered or its registration was removed. The lock does
    not exclude placements on the node (FOR NO KEY UPDATE).
    """
    row = await last_registration(conn, node_id, lock=lock)
    return None if row is None or row.state == REMOVED else row


async def last_registration(conn: AsyncConnection, node_id: NodeId, *, lock: bool = False) -> NodeRow | None:
    """Return the row of a node even if its registration was removed; None if the name was never registered."""
    query = sa.select(node).where(node.c.node_id == node_id)
    found = await conn.execute(query.with_for_update(key_share=True) if lock else query)
    row = found.mappings().one_or_none()
    return None if row is None else NodeRow(row)


async def held(conn: AsyncConnection, node_id: NodeId) -> NodeRow:
    """Return a registered node, and take a shared lock on its row (FOR SHARE) until the transaction ends."""
    query = sa.select(node).where(node.c.node_id == node_id).with_for_update(read=True)
    return NodeRow((await conn.execute(query)).mappings().one())


async def page(
    conn: AsyncConnection,
    *,
    after: NodeId | None,
    limit: int,
    name_prefix: str | None = None,
    descending: bool = False,
) -> list[NodeRow]:
    """Return one page of all nodes, ordered by name, for lists of a past state of the ledger: removed nodes are
    included. With `name_prefix`, only nodes with an id that begins with this text are returned.
    """
    query = sa.select(node)
    if name_prefix is not None:
        query = query.where(node.c.node_id.startswith(name_prefix, autoescape=True))
    place = None if after is None else (after,)
    query = keyset(query, [node.c.node_id], place, limit, descending=descending)
    return [NodeRow(row) for row in (await conn.execute(query)).mappings()]


async def subnets(conn: AsyncConnection) -> set[Ipv4Subnet]:
    """Return the subnets of all registered nodes."""
    query = sa.select(node.c.subnet).where(node.c.state != REMOVED)
    return {Ipv4Subnet(found) for found in await conn.scalars(query)}


async def running_drains(conn: AsyncConnection, names: Collection[str]) -> dict[str, NodeDrainStarted]:
    """Return the running drain of each of these nodes, by the name of the node; nodes without one are omitted."""
    if not names:
        return {}
    query = sa.select(node.c.node_id, node.c.drain).where(
        node.c.node_id.in_(names), node.c.drain.is_not(None), node.c.drain_ended.is_(None)
    )
    rows = await conn.execute(query)
    return {row.node_id: msgspec.convert(row.drain, NodeDrainStarted) for row in rows}


async def enrolled(conn: AsyncConnection) -> list[NodeId]:
    """Return the ids of all nodes that have a valid key, in ascending order. A node keeps its key after its enrolment
    is reopened, until it enrols again.

    Only ids are returned: there may be thousands, and some callers query every few seconds.
    """
    query = sa.select(node.c.node_id).where(node.c.key_thumbprint.is_not(None)).order_by(node.c.node_id)
    return [NodeId(name) for name in await conn.scalars(query)]
