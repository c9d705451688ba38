"""The configuration columns of Open vSwitch's database, and their comparison with the desired values of the agent.

The agent owns its bridge, the bridge's ports and their interfaces completely, so every configuration column has one
desired value: the value given by the agent, or else the default of the column (ovs-vswitchd.conf.db(5)).
`external_ids` are not compared, because other programs store annotations there that do not affect the switch. Only the
interface index that the agent stores in the `external_ids` of an interface is read.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

_NONE: Final = ["set", []]
_EMPTY: Final = ["map", []]
DEFAULTS: Final[Mapping[str, Mapping[str, Any]]] = {
    "Bridge": {
        "stp_enable": False,
        "rstp_enable": False,
        "mcast_snooping_enable": False,
        "flood_vlans": _NONE,
        "flow_tables": _EMPTY,
        "auto_attach": _NONE,
        "other_config": _EMPTY,
    },
    "Port": {
        "trunks": _NONE,
        "cvlans": _NONE,
        "tag": _NONE,
        "vlan_mode": _NONE,
        "qos": _NONE,
        "mac": _NONE,
        "bond_mode": _NONE,
        "lacp": _NONE,
        "bond_updelay": 0,
        "bond_downdelay": 0,
        "bond_fake_iface": False,
        "fake_bridge": False,
        "protected": False,
        "other_config": _EMPTY,
    },
    "Interface": {
        "type": "",
        "options": _EMPTY,
        "ingress_policing_rate": 0,
        "ingress_policing_burst": 0,
        "ingress_policing_kpkts_rate": 0,
        "ingress_policing_kpkts_burst": 0,
        "mac": _NONE,
        "bfd": _EMPTY,
        "cfm_mpid": _NONE,
        "lldp": _EMPTY,
        "other_config": _EMPTY,
        "mtu_request": _NONE,
    },
}
"""Configuration columns of Open vSwitch by table, with their defaults in OVSDB's encoding (RFC 7047, 5.1)."""
COMPARED_ELSEWHERE: Final[Mapping[str, frozenset[str]]] = {
    "Bridge": frozenset(
        [
            "name",
            "ports",
            "datapath_type",
            "fail_mode",
            "protocols",
            "controller",
            "mirrors",
            "sflow",
            "netflow",
            "ipfix",
        ]
    ),
    "Port": frozenset({"name", "interfaces"}),
    "Interface": frozenset({"name", "ofport_request"}),
}
"""Columns of Open vSwitch's database that `differing` does not compare, because separate fields of a bridge or a port
represent them."""
NOT_CONFIGURATION: Final[Mapping[str, frozenset[str]]] = {
    "Bridge": frozenset({"datapath_version", "external_ids"}),
    "Port": frozenset({"bond_active_slave", "external_ids"}),
    "Interface": frozenset({"ofport", "cfm_flap_count", "error", "external_ids"}),
}
"""Columns of Open vSwitch's database that are not configuration: ovs-vswitchd or other programs write them."""


def columns(table: str) -> tuple[str, ...]:
    return tuple(DEFAULTS[table])


def differing(table: str, row: Mapping[str, Any], desired: Mapping[str, Any]) -> Iterator[str]:
    """Yield `COLUMN=VALUE` for each configuration column that differs from its desired value."""
    for column, default in DEFAULTS[table].items():
        value = row[column]
        if value != desired.get(column, default):
            yield f"{column}={_value_text(value)}"


def map_of(pairs: Mapping[str, str]) -> list[Any]:
    """Encode a map for OVSDB, sorted by key."""
    return ["map", sorted([key, value] for key, value in pairs.items())]


def _value_text(value: Any) -> str:
    match value:
        case ["map", pairs]:
            return ",".join(f"{key}:{each}" for key, each in pairs)
        case ["set", members]:
            return ",".join(map(_value_text, members)) or "none"
        case ["uuid", uuid]:
            return str(uuid)
        case str():
            return value
        case _:
            return json.dumps(value)
