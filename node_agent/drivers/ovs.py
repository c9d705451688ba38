"""Open vSwitch: bridges and ports in its database, flows and meters in its switch.

Who deletes a device and makes it anew under its name leaves ovs-vswitchd (3.1, datapath netdev) with a dead socket: the
port carries nothing, and its columns, `ifindex` too, tell of the new device. So a port is added with the kernel's
number of its device, and one whose device bears another by now has no number.
"""

import json
import shutil
import socket
import struct
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Final

from pyroute2.netlink import NETLINK_GENERIC

from events.values import MacAddress
from node_agent.drivers.netlink import Refused, connected
from node_agent.drivers.openflow import OpenFlow, Tables
from node_agent.drivers.openflow_wire import Management
from node_agent.drivers.ovsdb import STRANGERS, Command, Ovsdb, Row, elements, pairs
from node_agent.drivers.sources import flows_of_bridge, switch_database
from node_agent.drivers.switch_rows import columns, differing, map_of
from node_agent.drivers.watching import Source
from node_agent.flows import Flow
from node_agent.gateway import Bridge
from node_agent.looks import look, look_again, look_ahead
from node_agent.meters import Meter
from node_agent.ports import Port, Switching
from node_agent.slices import HostRefused, HostUnreadable

COLUMNS: Final = {
    "Bridge": (
        "name",
        "datapath_id",
        "datapath_type",
        "fail_mode",
        "protocols",
        "ports",
        *columns("Bridge"),
        *STRANGERS,
    ),
    "Port": ("_uuid", "name", "interfaces", *columns("Port")),
    "Interface": ("_uuid", "name", "ofport", "error", "external_ids", *columns("Interface")),
    "Manager": ("target",),
    "Open_vSwitch": ("datapath_types", "other_config"),
    **{table: ("_uuid", known_by) for table, known_by in STRANGERS.values()},
}
DEVICE: Final = "sliceplane-ifindex"
"""Under which an interface's `external_ids` keep the kernel's number of its device."""
KERNEL: Final = "system"
"""The datapath type that the kernel's module provides."""
_NOT_IN_BAND: Final = "disable-in-band"
_OWN_CONFIG: Final = frozenset({"hwaddr", _NOT_IN_BAND})
_VLANS: Final = ("tag", "trunks")
_INTERNAL: Final = "internal"
"""The type of a bridge's own interface."""
_DEADLINE: Final = 1.0
_GENERIC: Final = struct.Struct("=BBxxHH")
"""struct genlmsghdr (linux/genetlink.h), and the header of one attribute."""
_CONTROLLER, _GET_FAMILY, _FAMILY_NAME = 0x10, 3, 2
"""GENL_ID_CTRL, CTRL_CMD_GETFAMILY and CTRL_ATTR_FAMILY_NAME."""


class OpenVSwitch:
    """`folder` is where OVS keeps its sockets (`/run/openvswitch`); `deadline` in seconds is each call's."""

    def __init__(self, folder: Path, deadline: float = 5.0) -> None:
        self._folder, self._deadline = folder, deadline
        self._database = Ovsdb(folder / "db.sock", deadline)
        self._openflow = OpenFlow(folder, deadline)

    def sources(self, bridge: str) -> dict[str, Source]:
        """Who tells of changes of the database and of this bridge's flows."""
        return {
            "ovsdb": switch_database(self._folder / "db.sock"),
            "openflow": flows_of_bridge(self._folder / f"{bridge}.mgmt"),
        }

    def close(self) -> None:
        self._database.close()

    def missing(self, datapath_type: str) -> tuple[str, ...]:
        return tuple(self._missing(datapath_type))

    def bridge(self, name: str) -> Bridge | None:
        rows = self._rows()
        found = [row for row in rows["Bridge"] if row["name"] == name]
        return _bridge(found[0], rows, has_datapath=self._has_datapath(found[0])) if found else None

    def set_bridge(self, bridge: Bridge) -> None:
        # OVS would keep one that it cannot make.
        if (lacks := self._lacks(bridge.datapath_type)) is not None:
            raise HostRefused(f"set bridge {bridge.name}: {lacks} is missing")
        desired = {
            "datapath_type": bridge.datapath_type,
            "fail_mode": "secure" if bridge.secure else "standalone",
            "protocols": sorted(bridge.protocols),
            "other_config": {"hwaddr": str(bridge.mac), _NOT_IN_BAND: json.dumps(not bridge.in_band)},
            **dict.fromkeys(STRANGERS, ()),
        }
        # New rows have the defaults, and no columns to clear.
        reset = _defaults(bridge.name) if self._has(bridge.name) else ()
        look_again()
        self._database.change(
            f"set bridge {bridge.name}",
            ("add_br", {"name": bridge.name, "may_exist": True, "datapath_type": bridge.datapath_type}),
            # One transaction: a bridge that is there is already secure.
            *reset,
            ("db_set", {"table": "Bridge", "record": bridge.name, **desired}),
            ("db_set", {"table": "Interface", "record": bridge.name, "type": _INTERNAL}),
        )
        made = self.bridge(bridge.name)
        if made is None or not made.has_datapath:
            raise HostRefused(
                f"set bridge {bridge.name}: ovs-vswitchd made no datapath of type {bridge.datapath_type};"
                " see its log"
            )

    def offloads(self) -> bool:
        """Whether it keeps filters of its own on links, to offload flows (ovs-vswitchd.conf.db(5), `hw-offload`)."""
        return any(
            pairs(row["other_config"]).get("hw-offload") == "true" for row in self._rows()["Open_vSwitch"]
        )

    def port(self, name: str) -> Port | None:
        rows = self._rows()
        own = next((row for row in rows["Port"] if row["name"] == name), None)
        holders = [row["name"] for row in rows["Bridge"] if own and own["_uuid"] in elements(row["ports"])]
        if own is None or not holders:
            return None
        interfaces = _interfaces(own, rows)
        numbers = [_number(row) for row in interfaces if row["name"] == name]
        number = numbers[0] if numbers else None
        vlans = frozenset((*elements(own["tag"]), *elements(own["trunks"])))
        # VLANs have a field of their own.
        unmanaged = frozenset(_unmanaged(own, interfaces, seen={column: own[column] for column in _VLANS}))
        return Port(name, holders[0], number, vlans, unmanaged)

    def ports(self, bridge: str) -> frozenset[str]:
        rows = self._rows()
        held = [uuid for row in rows["Bridge"] if row["name"] == bridge for uuid in elements(row["ports"])]
        return frozenset(row["name"] for row in rows["Port"] if row["_uuid"] in held) - {bridge}

    def add_port(self, port: Port) -> None:
        look_again(self)
        device = {DEVICE: _device(port.name)}
        self._database.change(
            f"add port {port.name} to {port.bridge}",
            (
                "add_port",
                {
                    "bridge": port.bridge,
                    "port": port.name,
                    "may_exist": False,
                    "ofport_request": port.number,
                    "external_ids": device,
                },
            ),
        )
        if self.port(port.name) != port:
            # OVS keeps a port whose device it could not open, or gives it another number; neither is what was asked.
            if not self._is_decided(port.name):
                raise HostUnreadable(f"add port {port.name} to {port.bridge}: no word from ovs-vswitchd")
            problem = self._problem(port.name)
            self.delete_port(port.name)
            raise HostRefused(f"add port {port.name} to {port.bridge}: {problem}")

    def delete_port(self, name: str) -> None:
        look_again(self)
        self._database.change(f"delete port {name}", ("del_port", {"port": name, "if_exists": True}))

    def look_ahead(self, bridge: str) -> None:
        look_ahead((self, "tables", bridge), lambda: self._openflow.ask_tables(bridge))
        look_ahead((self, "switching", bridge), lambda: self._management(bridge).ask_switching())

    def managers(self) -> tuple[str, ...]:
        return tuple(sorted(row["target"] for row in self._rows()["Manager"]))

    def switching(self, bridge: str) -> Switching:
        if not self._has(bridge):
            return Switching()
        return look((self, "switching", bridge), lambda: self._management(bridge).ask_switching().answer())

    def reset_switching(self, bridge: str) -> None:
        with self._changing(bridge):
            self._openflow.reset_switching(bridge)

    def flows(self, bridge: str) -> Mapping[int, frozenset[Flow]]:
        return self._tables(bridge).flows

    def set_flows(self, bridge: str, cookie: int, flows: frozenset[Flow]) -> None:
        with self._changing(bridge):
            self._openflow.set_flows(bridge, cookie, flows)

    def meters(self, bridge: str) -> Mapping[int, Meter | None]:
        return self._tables(bridge).meters

    def add_meter(self, bridge: str, number: int, meter: Meter) -> None:
        with self._changing(bridge):
            self._openflow.add_meter(bridge, number, meter)

    def change_meter(self, bridge: str, number: int, meter: Meter) -> None:
        with self._changing(bridge):
            self._openflow.change_meter(bridge, number, meter)

    def delete_meter(self, bridge: str, number: int) -> None:
        with self._changing(bridge):
            self._openflow.delete_meter(bridge, number)

    def _tables(self, bridge: str) -> Tables:
        if not self._has(bridge):
            return Tables({}, {})
        return look((self, "tables", bridge), lambda: self._openflow.ask_tables(bridge).answer())

    def _management(self, bridge: str) -> Management:
        return Management(self._folder / f"{bridge}.mgmt", self._deadline)

    def _has(self, bridge: str) -> bool:
        return any(row["name"] == bridge for row in self._rows()["Bridge"])

    def _rows(self) -> dict[str, list[Row]]:
        return look((self, "rows"), lambda: dict(self._database.select(COLUMNS)))

    def _is_decided(self, name: str) -> bool:
        """Whether ovs-vswitchd has seen to the port: until then it has no number, not even the one for a failure."""
        return any(elements(row["ofport"]) for row in self._rows()["Interface"] if row["name"] == name)

    @contextmanager
    def _changing(self, bridge: str) -> Iterator[None]:
        """Who cannot be reached may have no bridge of that name to be reached at: that is a refusal."""
        look_again(self)
        try:
            yield
        except HostUnreadable as unanswered:
            if self.bridge(bridge) is None:
                raise HostRefused(str(unanswered)) from unanswered
            raise

    def _problem(self, name: str) -> str:
        rows = [row for row in self._rows()["Interface"] if row["name"] == name]
        errors = [error for row in rows for error in elements(row["error"])]
        return errors[0] if errors else f"its OpenFlow port is {[_number(row) for row in rows]}"

    def _missing(self, datapath_type: str) -> Iterator[str]:
        if shutil.which("ovs-ofctl") is None:
            yield "program ovs-ofctl"
        try:
            lacks = self._lacks(datapath_type)
        except HostUnreadable as error:
            yield str(error)
            return
        if lacks is not None:
            yield lacks

    def _lacks(self, datapath_type: str) -> str | None:
        """What this datapath type needs and the host does not have."""
        supported = [each for row in self._rows()["Open_vSwitch"] for each in elements(row["datapath_types"])]
        # ovs-vswitchd lists them when it starts; before that nothing is known of them.
        if supported and datapath_type not in supported:
            return f"datapath type {datapath_type} of Open vSwitch, which supports {', '.join(supported)}"
        if datapath_type == KERNEL and not has_kernel_datapath():
            return f"kernel module openvswitch, for datapath type {KERNEL}"
        return None

    def _has_datapath(self, bridge: Row) -> bool:
        """The column keeps the id of a datapath that ovs-vswitchd lost; a switch that does not run may have one."""
        if not elements(bridge["datapath_id"]):
            return False
        return (self._folder / f"{bridge['name']}.mgmt").exists() or not self._is_running()

    def _is_running(self) -> bool:
        return any(map(_accepts, self._folder.glob("ovs-vswitchd.*.ctl")))


def has_kernel_datapath() -> bool:
    """Whether the kernel has Open vSwitch's datapath, loaded now if need be. Raises `HostUnreadable`."""
    name = b"ovs_datapath\0"
    asked = _GENERIC.pack(_GET_FAMILY, 1, 4 + len(name), _FAMILY_NAME) + name
    try:
        with connected(NETLINK_GENERIC, _DEADLINE) as kernel:
            kernel.tell(_CONTROLLER, asked + bytes(-len(asked) % 4), fine=0)
    except Refused:
        return False
    except OSError as error:
        raise HostUnreadable(f"generic netlink: {error}") from error
    return True


def _accepts(path: Path) -> bool:
    """Whether a program listens at this socket."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as wire:
        wire.settimeout(_DEADLINE)
        try:
            wire.connect(str(path))
        except OSError:
            return False
    return True


def _bridge(row: Row, rows: Mapping[str, list[Row]], *, has_datapath: bool) -> Bridge:
    config = pairs(row["other_config"])
    mac = config.get("hwaddr")
    return Bridge(
        row["name"],
        row["datapath_type"],
        MacAddress(mac) if mac else None,
        secure=row["fail_mode"] == "secure",
        protocols=frozenset(elements(row["protocols"])),
        in_band=config.get(_NOT_IN_BAND) != "true",
        strangers=frozenset(_strangers(row, rows)),
        unmanaged=frozenset(_unmanaged_of_bridge(row, rows)),
        has_datapath=has_datapath,
    )


def _unmanaged_of_bridge(row: Row, rows: Mapping[str, list[Row]]) -> Iterator[str]:
    config = {key: value for key, value in pairs(row["other_config"]).items() if key in _OWN_CONFIG}
    yield from differing("Bridge", row, {"other_config": map_of(config)})
    for port in rows["Port"]:
        if port["name"] == row["name"]:
            yield from _unmanaged(port, _interfaces(port, rows), type_=_INTERNAL)


def _unmanaged(
    port: Row, interfaces: Iterable[Row], seen: Mapping[str, object] = MappingProxyType({}), type_: str = ""
) -> Iterator[str]:
    """What differs of a port that has one interface, of its name; columns in `seen` have fields of their own."""
    yield from differing("Port", port, seen)
    for interface in interfaces:
        if interface["name"] == port["name"]:
            yield from differing("Interface", interface, {"type": type_})
        else:
            yield f"interface {interface['name']}"


def _interfaces(port: Row, rows: Mapping[str, list[Row]]) -> list[Row]:
    held = elements(port["interfaces"])
    return [row for row in rows["Interface"] if row["_uuid"] in held]


def _defaults(bridge: str) -> Iterator[Command]:
    """Commands that give every column of the bridge, its port and its interface the value that it has in a new row."""
    for table in ("Bridge", "Port", "Interface"):
        for column in columns(table):
            yield "db_clear", {"table": table, "record": bridge, "column": column}


def _strangers(bridge: Row, rows: Mapping[str, list[Row]]) -> Iterator[str]:
    for column, (table, known_by) in STRANGERS.items():
        held = elements(bridge[column])
        for each in rows[table]:
            if each["_uuid"] in held:
                yield " ".join((table.lower(), *elements(each[known_by])))


def _number(row: Row) -> int | None:
    numbers = elements(row["ofport"])
    known = pairs(row["external_ids"]).get(DEVICE) == _device(row["name"])
    return numbers[0] if known and numbers and numbers[0] > 0 else None


def _device(name: str) -> str:
    """The kernel's number of the device; empty when there is none."""
    try:
        return str(socket.if_nametoindex(name))
    except OSError:
        return ""
