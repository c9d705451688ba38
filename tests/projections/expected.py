"""Expected rows of the read models, computed from the last events of each stream, and not by the read models' code.

Comparing a table with its replay cannot detect a mistake that both contain. The functions of this module can, because
they share no code with the read models.
"""

import json
from collections import defaultdict
from datetime import datetime
from typing import Any, NamedTuple

import psycopg
from psycopg.rows import dict_row

Row = dict[str, Any]
_SLOT_STATE = {
    "slot.approved": "free",
    "slot.claimed": "claimed",
    "slot.releasing": "releasing",
    "slot.quarantined": "quarantined",
    "slot.released": "free",
    "slot.force_released": "free",
    "slot.retired": "retired",
    "slot.reinstated": "free",
}

_FREED = ("slot.released", "slot.force_released")


class _StoredEvent(NamedTuple):
    type: str
    data: Row


def slots(conn: psycopg.Connection) -> dict[str, Row]:
    return {facts[0].data["slot_id"]: _slot(facts) for facts in _streams(conn, "slot-")}


def status(row: Row) -> str | None:
    """Return the status as which the capacity counts a slot with this row; None if it does not count the slot."""
    held = {"claimed": "claimed", "releasing": "claimed", "quarantined": "quarantined"}
    if row["state"] == "free":
        return "blocked" if row["blocked"] or row["excluded"] else "free"
    return held.get(row["state"])


def _slot(facts: list[_StoredEvent]) -> Row:
    state_changes = [each for each in facts if each.type in _SLOT_STATE]
    held = _last(facts, "slot.claimed", but_not_after=_FREED)
    quarantined = _last(facts, "slot.quarantined", but_not_after=_FREED)
    hardware = _last(facts, "slot.discovered")["hardware"]
    retired = _last(facts, "slot.retired", but_not_after=("slot.reinstated",))
    network = _last(facts, "slot.approved", "slot.reprovisioned").get("network", {})
    described = _last(facts, "slot.devices_described")
    names = ("l2_domain", "mac_address", "private_ip", "subnet", "gateway", "bridge")
    return {
        "version": len(facts),
        "state": _SLOT_STATE[state_changes[-1].type] if state_changes else "discovered",
        "skus": _last(facts, "slot.approved", "slot.skus_changed", "slot.reinstated").get("skus"),
        "allocation_id": held.get("allocation_id"),
        "reason": {"code": "retired_by_admin", "message": retired["reason"]}
        if retired
        else quarantined.get("reason"),
        **_drift(facts, "slot"),
        **_bring_ups(facts, "slot"),
        "devices": described.get("devices", []),
        "numa_node": described.get("numa_node"),
        "approved_hardware": _last(facts, "slot.hardware_approved").get("hardware"),
        "granted": _last(facts, "slot.devices_granted").get("devices", []),
        **{name: hardware[name] for name in ("vcpus", "memory_mib", "network_device")},
        **{name: network.get(name) for name in names},
    }


def _bring_ups(facts: list[_StoredEvent], of: str) -> Row:
    ended_by = (f"{of}.bring_up_succeeded", f"{of}.readmitted")
    failed = _last(facts, f"{of}.bring_up_failed", but_not_after=ended_by)
    excluded = _last(facts, f"{of}.excluded", but_not_after=(f"{of}.readmitted",))
    return {"failures": failed.get("failures"), "excluded": excluded.get("reason")}


def _cordon(facts: list[_StoredEvent]) -> Row:
    opened = ("node.uncordoned", "node.removed")
    drain = _last(facts, "node.drain_started", but_not_after=opened)
    ended = _last(facts, "node.drain_ended", but_not_after=(*opened, "node.drain_started"))
    return {
        "cordoned": _last(facts, "node.cordoned", but_not_after=opened).get("reason"),
        "drain": drain or None,
        "drain_ended": ended or None,
    }


def _drift(facts: list[_StoredEvent], of: str) -> Row:
    open_ = _last(facts, f"{of}.degraded", but_not_after=(f"{of}.recovered",)).get("drift")
    return {"drift": open_, "blocked": any(each["blocks"] for each in open_ or ())}


def nodes(conn: psycopg.Connection) -> dict[str, Row]:
    return {facts[0].data["node_id"]: _node(facts) for facts in _streams(conn, "node-")}


def _node(facts: list[_StoredEvent]) -> Row:
    registered = _last(facts, "node.registered")
    changed = _last(facts, "node.network_changed", but_not_after=("node.removed",))
    network = changed.get("network", {})
    token = _last(facts, "node.registered", "node.enrolment_reopened")
    key = _last(facts, "node.enrolled", but_not_after=("node.revoked",))
    superseded = _last(facts, "node.agent_superseded", but_not_after=("node.enrolled",))
    revoked = _last(facts, "node.revoked", but_not_after=("node.enrolled",))
    inspected = _last(facts, "node.inspected")
    throttled = _last(facts, "node.reports_throttled", but_not_after=("node.reports_resumed",))
    agent = _last(facts, "node.enrolled", "node.inspected")
    states = {
        "node.registered": "registered",
        "node.enrolment_reopened": "registered",
        "node.enrolled": "enrolled",
        "node.revoked": "revoked",
        "node.removed": "removed",
    }
    return {
        "version": len(facts),
        "state": [states[each.type] for each in facts if each.type in states][-1],
        "subnet": registered["subnet"],
        "l2_domain": network["l2_domain"] if network else registered["l2_domain"],
        "bridge": network.get("bridge"),
        "mac_pool": network.get("mac_pool"),
        "token_sha256": token["token_sha256"],
        "public_key": key.get("public_key"),
        "key_thumbprint": key.get("key_thumbprint"),
        "superseded_session": superseded.get("presented_session"),
        "revoked": revoked.get("reason"),
        "throttled_at": datetime.fromisoformat(throttled["since"]) if throttled else None,
        "agent_version": agent.get("agent_version"),
        **_drift(facts, "node"),
        **_bring_ups(facts, "node"),
        **_cordon(facts),
        **{name: inspected.get(name) for name in ("hostname", "simulated", "images", "missing")},
        "unsupported_modes": {
            each["mode"]: each["reason"] for each in inspected.get("unsupported_modes", ())
        },
    }


def rows(conn: psycopg.Connection, table: str, key: str, expected: dict[str, Row]) -> dict[str, Row]:
    """Return the rows of a live read model table by key, with only those columns that the expected rows have."""
    found = conn.cursor(row_factory=dict_row).execute(f"select * from read.{table}").fetchall()
    columns = next(iter(expected.values())).keys() if expected else ()
    return {row[key]: {name: row[name] for name in columns} for row in found}


def _last(facts: list[_StoredEvent], *types: str, but_not_after: tuple[str, ...] = ()) -> Row:
    for each in reversed(facts):
        if each.type in types:
            return each.data
        if each.type in but_not_after:
            return {}
    return {}


def _streams(conn: psycopg.Connection, prefix: str) -> list[list[_StoredEvent]]:
    query = (
        "select stream_id, type, data from ledger.event where starts_with(stream_id, %s) order by position"
    )
    found: defaultdict[str, list[_StoredEvent]] = defaultdict(list)
    for stream, type_, data in conn.execute(query, [prefix]):
        found[stream].append(_StoredEvent(type_, json.loads(data)))
    return list(found.values())
