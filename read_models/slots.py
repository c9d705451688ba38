"""`read.slot`: one row per slot with its current state. Placement uses these rows, so they are written in the
transaction that appends the slot's events to the ledger.

`version` is the version of the slot's stream: the holder of the row's lock can append at this version.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final, assert_never

import msgspec
import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.ext.asyncio import AsyncConnection

from events.drift import OpenDrift
from events.facts import Reason
from events.ledger.tables import metadata
from events.offers import SlotClass, decoded, encoded, offer_of
from events.slot_states import SlotStateName, holder_of, reason_of, slot_state
from events.slots import (
    ApprovedHardware,
    CheckedDevice,
    SlotApproved,
    SlotBringUpFailed,
    SlotBringUpSucceeded,
    SlotClaimed,
    SlotDegraded,
    SlotDevice,
    SlotDevicesChecked,
    SlotDevicesDescribed,
    SlotDevicesGranted,
    SlotDiscovered,
    SlotExcluded,
    SlotFact,
    SlotForceReleased,
    SlotHardware,
    SlotHardwareApproved,
    SlotNetwork,
    SlotQuarantined,
    SlotReadmitted,
    SlotRecovered,
    SlotReinstated,
    SlotReleased,
    SlotReleasing,
    SlotRepaired,
    SlotReprovisioned,
    SlotRetired,
    SlotSkusChanged,
    SlotUse,
)
from events.values import AllocationId, NodeId, PciAddress, SkuName, SlotId, SlotIndex, index_of
from read_models.bring_ups import bring_up_columns, bring_up_values, excluded_in, failures_in
from read_models.compiled import CompiledQuery
from read_models.drift import drift_columns, drift_in
from read_models.pages import keyset
from read_models.rows import Patch

CLASS_EXPRESSION: Final = (
    "coalesce(skus::text, '') || ' ' || vcpus::text || ' ' || memory_mib::text || ' ' || coalesce(offer, '')"
)
"""SQL expression of a slot's class: equal for slots that differ in nothing that placement compares with a request."""

slot = sa.Table(
    "slot",
    metadata,
    sa.Column("slot_id", sa.Text, primary_key=True),
    sa.Column("node_id", sa.Text, nullable=False),
    sa.Column("slot_index", sa.Integer, nullable=False),
    sa.Column("version", sa.BigInteger, nullable=False),
    sa.Column("state", sa.Text, nullable=False),
    sa.Column("vcpus", sa.Integer, nullable=False),
    sa.Column("memory_mib", sa.Integer, nullable=False),
    sa.Column("network_device", sa.Text, nullable=False),
    sa.Column("devices", JSONB, nullable=False, server_default=sa.text("'[]'")),
    sa.Column("numa_node", sa.Integer),
    sa.Column("granted", JSONB, nullable=False, server_default=sa.text("'[]'")),
    sa.Column("approved_hardware", JSONB(none_as_null=True)),
    sa.Column("skus", JSONB(none_as_null=True)),
    sa.Column("offer", sa.Text),
    sa.Column("class", sa.Text, sa.Computed(CLASS_EXPRESSION, persisted=True)),
    sa.Column("l2_domain", sa.Text),
    sa.Column("mac_address", sa.Text),
    sa.Column("private_ip", sa.Text),
    sa.Column("subnet", sa.Text),
    sa.Column("gateway", sa.Text),
    sa.Column("bridge", sa.Text),
    sa.Column("allocation_id", sa.Text),
    sa.Column("use", JSONB(none_as_null=True)),
    sa.Column("reason", JSONB(none_as_null=True)),
    sa.Column("drift", JSONB(none_as_null=True)),
    sa.Column("blocked", sa.Boolean, nullable=False, server_default=sa.false()),
    sa.Column("device_check", JSONB(none_as_null=True)),
    *bring_up_columns(),
    sa.Index("slot_by_node", "node_id", "slot_index"),
    sa.Index(
        "slot_free",
        "class",
        "node_id",
        "slot_index",
        postgresql_where=sa.text("state = 'free' and not blocked"),
    ),
    sa.Index("slot_class", "class"),
    sa.Index(
        "slot_used",
        sa.text("(use ->> 'project')"),
        sa.text("(use ->> 'sku')"),
        postgresql_where=sa.text("use is not null"),
    ),
    sa.Index("slot_excluded", "node_id", "slot_index", postgresql_where=sa.text("excluded is not null")),
    sa.Index("slot_drifting", "node_id", "slot_index", postgresql_where=sa.text("drift is not null")),
    schema="read",
)
RETIRED: Final = "retired_by_admin"
"""Code of the reason of a retired slot."""
_NETWORK: Final = SlotNetwork.__struct_fields__


class DeviceCheck(msgspec.Struct, frozen=True):
    """The newest check of the PCI functions of a slot, which followed the release by an allocation."""

    allocation_id: AllocationId
    devices: tuple[CheckedDevice, ...]


class SlotRow:
    """The row of a slot in `read.slot`; `drift` is the open drift of the slot.

    `devices` are the PCI functions that the node describes for the slot, `offer` is what follows from them for
    placement, and `granted` are the functions that an admin approved. `approved_hardware` is the hardware that the
    slot is bound to, and None before its approval. The slot is offered under `skus`, which is empty
    before its approval.
    `use` is what the slot counts towards quotas while an allocation holds it.
    `device_check` is the newest check of the functions after a release; None before the first one.
    `failures` are the failed starts of slices (bring-ups) in the slot since the last success; `excluded` is the reason
    why it is excluded from placement.
    """

    def __init__(self, row: Mapping[Any, Any]) -> None:
        self.slot_id = SlotId(row["slot_id"])
        self.node_id = NodeId(row["node_id"])
        self.index = SlotIndex(row["slot_index"])
        self.version: int = row["version"]
        self.state = slot_state(
            msgspec.convert(row["state"], SlotStateName),
            AllocationId(row["allocation_id"]) if row["allocation_id"] else None,
            Reason(**row["reason"]) if row["reason"] else None,
        )
        self.hardware = SlotHardware(row["vcpus"], row["memory_mib"], row["network_device"])
        self.devices = msgspec.convert(row["devices"] or (), tuple[SlotDevice, ...])
        self.numa_node: int | None = row["numa_node"]
        self.granted = tuple(PciAddress(each) for each in row["granted"] or ())
        self.approved_hardware = (
            msgspec.convert(row["approved_hardware"], ApprovedHardware) if row["approved_hardware"] else None
        )
        self.class_: str = row["class"]
        self.skus = tuple(SkuName(each) for each in row["skus"] or ())
        self.offer = decoded(row["offer"])
        self.allocation_id = holder_of(self.state)
        self.use = None if row["use"] is None else msgspec.convert(row["use"], SlotUse)
        self.reason = reason_of(self.state)
        self.drift = drift_in(row["drift"])
        self.failures, self.excluded = failures_in(row["failures"]), excluded_in(row["excluded"])
        check = row["device_check"]
        self.device_check = None if check is None else msgspec.convert(check, DeviceCheck)
        self.network = SlotNetwork(*(row[name] for name in _NETWORK)) if row["mac_address"] else None


def patch(version: int, fact: SlotFact) -> Patch:
    """Return the patch that a fact applies to the row of its slot. `version` is the fact's version in its stream."""
    match fact:
        case SlotDiscovered(slot_id=slot_id, node_id=node_id, hardware=hardware):
            described = {
                "version": version,
                "vcpus": hardware.vcpus,
                "memory_mib": hardware.memory_mib,
                "network_device": hardware.network_device,
            }
            born = {"node_id": node_id, "slot_index": index_of(slot_id), **_named("discovered")}
            return Patch(slot_id, described, born)
        case SlotApproved() | SlotRetired() | SlotReinstated() | SlotReprovisioned():
            return Patch(fact.slot_id, {"version": version, **_approval_columns(fact)})
        case SlotSkusChanged() | SlotDevicesDescribed() | SlotDevicesGranted():
            return Patch(fact.slot_id, {"version": version, **_offer_columns(fact)})
        case SlotHardwareApproved() | SlotDevicesChecked():
            return Patch(fact.slot_id, {"version": version, **_hardware_columns(fact)})
        case SlotClaimed() | SlotReleasing() | SlotQuarantined() | SlotReleased() | SlotForceReleased():
            return Patch(fact.slot_id, {"version": version, **_holder_columns(fact)})
        case SlotDegraded() | SlotRecovered() | SlotRepaired():
            open_ = {} if isinstance(fact, SlotRepaired) else drift_columns(_open_drift(fact))
            return Patch(fact.slot_id, {"version": version, **open_})
        case SlotBringUpFailed() | SlotBringUpSucceeded() | SlotExcluded() | SlotReadmitted():
            return Patch(fact.slot_id, {"version": version, **bring_up_values(fact)})
        case _:
            assert_never(fact)


def _holder_columns(
    fact: SlotClaimed | SlotReleasing | SlotQuarantined | SlotReleased | SlotForceReleased,
) -> dict[str, object]:
    match fact:
        case SlotClaimed(allocation_id=allocation):
            use = None if fact.use is None else msgspec.to_builtins(fact.use)
            return {**_named("claimed"), "allocation_id": allocation, "use": use}
        case SlotReleasing():
            return _named("releasing")
        case SlotQuarantined(reason=reason):
            return {**_named("quarantined"), "reason": {"code": reason.code, "message": reason.message}}
        case SlotReleased() | SlotForceReleased():
            return {**_named("free"), "allocation_id": None, "use": None, "reason": None}
        case _:
            assert_never(fact)


def _approval_columns(
    fact: SlotApproved | SlotRetired | SlotReinstated | SlotReprovisioned,
) -> dict[str, object]:
    match fact:
        case SlotApproved(network=network, skus=skus):
            return {**_named("free"), "skus": list(skus), **_network_columns(network)}
        case SlotRetired(reason=text):
            return {**_named("retired"), "reason": {"code": RETIRED, "message": text}}
        case SlotReinstated(skus=skus):
            return {**_named("free"), "reason": None, "skus": list(skus)}
        case SlotReprovisioned(network=network):
            return _network_columns(network)
        case _:
            assert_never(fact)


def _network_columns(network: SlotNetwork) -> dict[str, object]:
    return {name: getattr(network, name) for name in _NETWORK}


def _named(state: SlotStateName) -> dict[str, object]:
    return {"state": state}


def _open_drift(fact: SlotDegraded | SlotRecovered) -> tuple[OpenDrift, ...]:
    return fact.drift if isinstance(fact, SlotDegraded) else ()


def _offer_columns(
    fact: SlotSkusChanged | SlotDevicesDescribed | SlotDevicesGranted,
) -> dict[str, object]:
    match fact:
        case SlotSkusChanged(skus=skus):
            return {"skus": list(skus)}
        case SlotDevicesDescribed(devices=devices, numa_node=node):
            offer = encoded(offer_of(devices, node))
            return {"devices": msgspec.to_builtins(devices), "numa_node": node, "offer": offer}
        case SlotDevicesGranted(devices=granted):
            return {"granted": list(granted)}
        case _:
            assert_never(fact)


def _hardware_columns(fact: SlotHardwareApproved | SlotDevicesChecked) -> dict[str, object]:
    match fact:
        case SlotHardwareApproved(hardware=hardware):
            return {"approved_hardware": msgspec.to_builtins(hardware)}
        case SlotDevicesChecked(allocation_id=allocation, devices=devices):
            return {"device_check": {"allocation_id": allocation, "devices": msgspec.to_builtins(devices)}}
        case _:
            assert_never(fact)


async def locked(conn: AsyncConnection, slot_ids: Sequence[SlotId]) -> dict[SlotId, SlotRow]:
    """Lock the rows of slots in the order of node and index, in which every transaction locks them; return them by
    slot id.
    """
    query = (
        sa.select(slot)
        .where(slot.c.slot_id.in_(slot_ids))
        .order_by(slot.c.node_id, slot.c.slot_index)
        .with_for_update()
    )
    return {row.slot_id: row for row in map(SlotRow, (await conn.execute(query)).mappings())}


async def classes(
    conn: AsyncConnection, past: sa.Select[tuple[Any, ...]] | None = None
) -> dict[str, SlotClass]:
    """Return the classes of all slots, by key, and those of the rows of the query `past`. There are few, however many
    slots there are: the query jumps from each class to the next one in the index.
    """
    if past is None:
        rows = await CLASSES.rows(conn, {})
    else:
        rows = [dict(each) for each in (await conn.execute(_classes(past))).mappings()]
    return classes_in(rows)


def classes_in(rows: Iterable[Mapping[str, Any]]) -> dict[str, SlotClass]:
    """Return the classes of slots in rows of the query `CLASSES`, by key."""
    return {
        row["key"]: _class(tuple(row["skus"] or ()), row["vcpus"], row["memory_mib"], row["offer"])
        for row in rows
    }


@lru_cache(maxsize=4096)
def _class(skus: tuple[SkuName, ...], vcpus: int, memory_mib: int, offer: str | None) -> SlotClass:
    return SlotClass(skus, vcpus, memory_mib, decoded(offer))


def _classes(past: sa.Select[tuple[Any, ...]] | None) -> sa.Select[Any] | sa.CompoundSelect[Any]:
    """Return the query that `classes` runs."""
    key = slot.c["class"]
    least = sa.select(sa.func.min(key).label("key"))
    found = least.cte("found", recursive=True)
    above = least.where(key > found.c.key).scalar_subquery()
    found = found.union_all(sa.select(above).where(found.c.key.is_not(None)))
    shown = (slot.c.skus, slot.c.vcpus, slot.c.memory_mib, slot.c.offer)
    one = sa.select(*shown).where(key == found.c.key).limit(1).lateral("one")
    query = sa.select(found.c.key, one).select_from(sa.join(found, one, sa.true()))
    # For the null at the end, the inner query would read all slots.
    present = query.where(found.c.key.is_not(None))
    if past is None:
        return present
    then = past.subquery().c
    return sa.union_all(present, sa.select(then["class"], then.skus, then.vcpus, then.memory_mib, then.offer))


CLASSES: Final = CompiledQuery(_classes(None))
"""Query for the classes of all slots; `classes_in` reads its rows."""


async def find(conn: AsyncConnection, slot_id: SlotId) -> SlotRow | None:
    row = (await conn.execute(sa.select(slot).where(slot.c.slot_id == slot_id))).mappings().one_or_none()
    return None if row is None else SlotRow(row)


async def of_node(conn: AsyncConnection, node: NodeId, *, lock: bool = False) -> list[SlotRow]:
    query = sa.select(slot).where(slot.c.node_id == node).order_by(slot.c.slot_index)
    found = await conn.execute(query.with_for_update() if lock else query)
    return [SlotRow(row) for row in found.mappings()]


async def drifting(conn: AsyncConnection, hosts: Sequence[NodeId]) -> list[SlotRow]:
    """Return the slots of these nodes that have open drift, ordered by node and index."""
    query = sa.select(slot).where(slot.c.node_id.in_(hosts), slot.c.drift.is_not(None))
    ordered = query.order_by(slot.c.node_id, slot.c.slot_index)
    return [SlotRow(row) for row in (await conn.execute(ordered)).mappings()]


async def ids_of(conn: AsyncConnection, hosts: Sequence[NodeId]) -> list[SlotId]:
    """Return the ids of all slots of these nodes, ordered by node and index."""
    query = sa.select(slot.c.slot_id).where(slot.c.node_id.in_(hosts))
    return [SlotId(name) for name in await conn.scalars(query.order_by(slot.c.node_id, slot.c.slot_index))]


async def page(
    conn: AsyncConnection,
    *,
    after: tuple[NodeId, SlotIndex] | None,
    limit: int,
    descending: bool = False,
    nodes: Collection[NodeId] = (),
    state: str | None = None,
    sku: str | None = None,
) -> list[SlotRow]:
    """Return one page of slots, ordered by node and index. Each filter that is given selects: slots of these nodes,
    slots in this state, and slots that are offered under this SKU.
    """
    query = sa.select(slot)
    if nodes:
        query = query.where(slot.c.node_id.in_(nodes))
    if state is not None:
        query = query.where(slot.c.state == state)
    if sku is not None:
        query = query.where(slot.c.skus.contains([sku]))
    query = keyset(query, [slot.c.node_id, slot.c.slot_index], after, limit, descending=descending)
    return [SlotRow(row) for row in (await conn.execute(query)).mappings()]
