"""Driver of Open vSwitch: bridges and ports through its database, flows and meters through OpenFlow.

If a program deletes a device and creates it again under the same name, ovs-vswitchd (3.1, datapath netdev) keeps a dead
socket: the port carries no traffic, although its columns, including `ifindex`, describe the new device. A port is
therefore added with the interface index of its device, and if the index of the device changes later, the port
counts as a port without a number.
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
from node_agent.aspects.flows import Flow
from node_agent.aspects.gateway import Bridge
from node_agent.aspects.meters import Meter
from node_agent.aspects.ports import Port, Switching
from node_agent.drivers.network.netlink import Refused, connected
from node_agent.drivers.network.openflow import OpenFlow, Tables
from node_agent.drivers.network.openflow_wire import Management
from node_agent.drivers.network.ovsdb import FOREIGN_COLUMNS, Command, Ovsdb, Row, elements, pairs
from node_agent.drivers.network.sources import flows_of_bridge, switch_database
from node_agent.drivers.network.switch_rows import columns, differing, map_of
from node_agent.drivers.watching import Source
from node_agent.host.slices import HostRefused, HostUnreadable
from node_agent.host.snapshots import invalidate_reads, look, start_reading

COLUMNS: Final = {
    "Bridge": (
        "name",
        "datapath_id",
        "datapath_type",
        "fail_mode",
        "protocols",
        "ports",
        *columns("Bridge"),
        *FOREIGN_COLUMNS,
    ),
    "Port": ("_uuid", "name", "interfaces", *columns("Port")),
    "Interface": ("_uuid", "name", "ofport", "error", "external_ids", *columns("Interface")),
    "Manager": ("target",),
    "Open_vSwitch": ("datapath_types", "other_config"),
    **{table: ("_uuid", label) for table, label in FOREIGN_COLUMNS.values()},
}
DEVICE: Final = "sliceplane-ifindex"
"""Key in an interface's `external_ids` for the interface index of its device."""
KERNEL: Final = "system"
"""Open vSwitch datapath type of the datapath in the kernel module `openvswitch`."""
_NOT_IN_BAND: Final = "disable-in-band"
_OWN_CONFIG: Final = frozenset({"hwaddr", _NOT_IN_BAND})
_VLANS: Final = ("tag", "trunks")
_INTERNAL: Final = "internal"
"""Open vSwitch interface type of a bridge's own interface."""
_DEADLINE: Final = 1.0
_GENERIC: Final = struct.Struct("=BBxxHH")
"""Layout of struct genlmsghdr (linux/genetlink.h), followed by the header of one netlink attribute."""
_CONTROLLER, _GET_FAMILY, _FAMILY_NAME = 0x10, 3, 2
"""Generic netlink constants GENL_ID_CTRL, CTRL_CMD_GETFAMILY and CTRL_ATTR_FAMILY_NAME."""


class OpenVSwitch:
    """The host's virtual switch.

    `folder` contains the sockets of Open vSwitch (`/run/openvswitch`). `deadline` is in seconds and applies to each
    call.
    """

    def __init__(self, folder: Path, deadline: float = 5.0) -> None:
        self._folder, self._deadline = folder, deadline
        self._database = Ovsdb(folder / "db.sock", deadline)
        self._openflow = OpenFlow(folder, deadline)

    def sources(self, bridge: str) -> dict[str, Source]:
        """Return the event sources for changes of Open vSwitch's database and of this bridge's flows."""
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
        # Open vSwitch would store a bridge that it cannot create.
        if (missing := self._missing_for_datapath(bridge.datapath_type)) is not None:
            raise HostRefused(f"cannot set bridge {bridge.name}: the host lacks {missing}")
        desired = {
            "datapath_type": bridge.datapath_type,
            "fail_mode": "secure" if bridge.secure else "standalone",
            "protocols": sorted(bridge.protocols),
            "other_config": {"hwaddr": str(bridge.mac), _NOT_IN_BAND: json.dumps(not bridge.in_band)},
            **dict.fromkeys(FOREIGN_COLUMNS, ()),
        }
        # A new row has default values, so there are no columns to reset.
        reset = _defaults(bridge.name) if self._has(bridge.name) else ()
        invalidate_reads()
        self._database.change(
            f"set bridge {bridge.name}",
            ("add_br", {"name": bridge.name, "may_exist": True, "datapath_type": bridge.datapath_type}),
            # A single transaction, so that a bridge is never visible before it is secure.
            *reset,
            ("db_set", {"table": "Bridge", "record": bridge.name, **desired}),
            ("db_set", {"table": "Interface", "record": bridge.name, "type": _INTERNAL}),
        )
        made = self.bridge(bridge.name)
        if made is None or not made.has_datapath:
            raise HostRefused(
                f"cannot set bridge {bridge.name}: ovs-vswitchd did not create a datapath of type {bridge.datapath_type};"
                " see its log"
            )

    def offloads(self) -> bool:
        """Return whether Open vSwitch installs filters on links to offload flows (ovs-vswitchd.conf.db(5),
        `hw-offload`).
        """
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
        # VLANs are compared in a separate field.
        unmanaged = frozenset(
            _unmanaged(own, interfaces, compared_elsewhere={column: own[column] for column in _VLANS})
        )
        return Port(name, holders[0], number, vlans, unmanaged)

    def ports(self, bridge: str) -> frozenset[str]:
        rows = self._rows()
        held = [uuid for row in rows["Bridge"] if row["name"] == bridge for uuid in elements(row["ports"])]
        return frozenset(row["name"] for row in rows["Port"] if row["_uuid"] in held) - {bridge}

    def add_port(self, port: Port) -> None:
        invalidate_reads(self)
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
            # Open vSwitch keeps a port although it could not open the device, and may assign a different number.
            if not self._is_processed(port.name):
                raise HostUnreadable(
                    f"cannot add port {port.name} to {port.bridge}: ovs-vswitchd did not process the port in time"
                )
            problem = self._problem(port.name)
            self.delete_port(port.name)
            raise HostRefused(f"cannot add port {port.name} to {port.bridge}: {problem}")

    def delete_port(self, name: str) -> None:
        invalidate_reads(self)
        self._database.change(f"delete port {name}", ("del_port", {"port": name, "if_exists": True}))

    def start_reading(self, bridge: str) -> None:
        start_reading((self, "tables", bridge), lambda: self._openflow.start_reading_tables(bridge))
        start_reading((self, "switching", bridge), lambda: self._management(bridge).request_switching())

    def managers(self) -> tuple[str, ...]:
        return tuple(sorted(row["target"] for row in self._rows()["Manager"]))

    def switching(self, bridge: str) -> Switching:
        if not self._has(bridge):
            return Switching()
        return look(
            (self, "switching", bridge), lambda: self._management(bridge).request_switching().answer()
        )

    def reset_switching(self, bridge: str) -> None:
        with self._change_of(bridge):
            self._openflow.reset_switching(bridge)

    def flows(self, bridge: str) -> Mapping[int, frozenset[Flow]]:
        return self._tables(bridge).flows

    def set_flows(self, bridge: str, cookie: int, flows: frozenset[Flow]) -> None:
        with self._change_of(bridge):
            self._openflow.set_flows(bridge, cookie, flows)

    def meters(self, bridge: str) -> Mapping[int, Meter | None]:
        return self._tables(bridge).meters

    def add_meter(self, bridge: str, number: int, meter: Meter) -> None:
        with self._change_of(bridge):
            self._openflow.add_meter(bridge, number, meter)

    def change_meter(self, bridge: str, number: int, meter: Meter) -> None:
        with self._change_of(bridge):
            self._openflow.change_meter(bridge, number, meter)

    def delete_meter(self, bridge: str, number: int) -> None:
        with self._change_of(bridge):
            self._openflow.delete_meter(bridge, number)

    def _tables(self, bridge: str) -> Tables:
        if not self._has(bridge):
            return Tables({}, {})
        return look((self, "tables", bridge), lambda: self._openflow.start_reading_tables(bridge).answer())

    def _management(self, bridge: str) -> Management:
        return Management(self._folder / f"{bridge}.mgmt", self._deadline)

    def _has(self, bridge: str) -> bool:
        return any(row["name"] == bridge for row in self._rows()["Bridge"])

    def _rows(self) -> dict[str, list[Row]]:
        return look((self, "rows"), lambda: dict(self._database.select(COLUMNS)))

    def _is_processed(self, name: str) -> bool:
        """Return whether ovs-vswitchd has processed the new port.

        Until then the port has no OpenFlow number, not even the value -1 that means a failure.
        """
        return any(elements(row["ofport"]) for row in self._rows()["Interface"] if row["name"] == name)

    @contextmanager
    def _change_of(self, bridge: str) -> Iterator[None]:
        """Run the `with` block, which changes a bridge. Raises `HostRefused` instead of `HostUnreadable` if the change
        was not answered and the bridge does not exist.
        """
        invalidate_reads(self)
        try:
            yield
        except HostUnreadable as unanswered:
            if self.bridge(bridge) is None:
                raise HostRefused(str(unanswered)) from unanswered
            raise

    def _problem(self, name: str) -> str:
        rows = [row for row in self._rows()["Interface"] if row["name"] == name]
        errors = [error for row in rows for error in elements(row["error"])]
        return (
            errors[0]
            if errors
            else "Open vSwitch set the port differently; "
            f"its OpenFlow port numbers are {[_number(row) for row in rows]}"
        )

    def _missing(self, datapath_type: str) -> Iterator[str]:
        if shutil.which("ovs-ofctl") is None:
            yield "program ovs-ofctl"
        try:
            missing = self._missing_for_datapath(datapath_type)
        except HostUnreadable as error:
            yield str(error)
            return
        if missing is not None:
            yield missing

    def _missing_for_datapath(self, datapath_type: str) -> str | None:
        """Return a description of what the host lacks for a bridge with this Open vSwitch datapath type; None if it
        lacks nothing.
        """
        supported = [each for row in self._rows()["Open_vSwitch"] for each in elements(row["datapath_types"])]
        # ovs-vswitchd lists the types when it starts. Before that the column is empty and proves nothing.
        if supported and datapath_type not in supported:
            return f"datapath type {datapath_type} of Open vSwitch, which supports {', '.join(supported)}"
        if datapath_type == KERNEL and not has_kernel_datapath():
            return f"kernel module openvswitch, for datapath type {KERNEL}"
        return None

    def _has_datapath(self, bridge: Row) -> bool:
        """Return whether the bridge has a datapath.

        The database keeps the id of a datapath that ovs-vswitchd lost, so the management socket is checked too. While
        ovs-vswitchd is not running, a datapath with an id counts as existing.
        """
        if not elements(bridge["datapath_id"]):
            return False
        return (self._folder / f"{bridge['name']}.mgmt").exists() or not self._is_running()

    def _is_running(self) -> bool:
        return any(map(_accepts, self._folder.glob("ovs-vswitchd.*.ctl")))


def has_kernel_datapath() -> bool:
    """Return whether the kernel has Open vSwitch's datapath. Loads the module if needed. Raises `HostUnreadable`."""
    name = b"ovs_datapath\0"
    request = _GENERIC.pack(_GET_FAMILY, 1, 4 + len(name), _FAMILY_NAME) + name
    try:
        with connected(NETLINK_GENERIC, _DEADLINE) as kernel:
            kernel.execute(_CONTROLLER, request + bytes(-len(request) % 4), ignored_error=0)
    except Refused:
        return False
    except OSError as error:
        raise HostUnreadable(
            f"cannot find out over generic netlink whether the kernel has the datapath of Open vSwitch: {error}"
        ) from error
    return True


def _accepts(path: Path) -> bool:
    """Return whether a program accepts connections on the Unix socket at `path`."""
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
        foreign_objects=frozenset(_foreign_records(row, rows)),
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
    port: Row,
    interfaces: Iterable[Row],
    compared_elsewhere: Mapping[str, object] = MappingProxyType({}),
    type_: str = "",
) -> Iterator[str]:
    """Yield the differences of an Open vSwitch port from a port with a single interface of the same name.

    Database columns in `compared_elsewhere` are ignored.
    """
    yield from differing("Port", port, compared_elsewhere)
    for interface in interfaces:
        if interface["name"] == port["name"]:
            yield from differing("Interface", interface, {"type": type_})
        else:
            yield f"interface {interface['name']}"


def _interfaces(port: Row, rows: Mapping[str, list[Row]]) -> list[Row]:
    held = elements(port["interfaces"])
    return [row for row in rows["Interface"] if row["_uuid"] in held]


def _defaults(bridge: str) -> Iterator[Command]:
    """Yield commands that reset all database columns of the bridge, its port and its interface to their defaults."""
    for table in ("Bridge", "Port", "Interface"):
        for column in columns(table):
            yield "db_clear", {"table": table, "record": bridge, "column": column}


def _foreign_records(bridge: Row, rows: Mapping[str, list[Row]]) -> Iterator[str]:
    for column, (table, label) in FOREIGN_COLUMNS.items():
        held = elements(bridge[column])
        for each in rows[table]:
            if each["_uuid"] in held:
                yield " ".join((table.lower(), *elements(each[label])))


def _number(row: Row) -> int | None:
    numbers = elements(row["ofport"])
    is_current = pairs(row["external_ids"]).get(DEVICE) == _device(row["name"])
    return numbers[0] if is_current and numbers and numbers[0] > 0 else None


def _device(name: str) -> str:
    """Return the interface index of a network device as text; empty if the device does not exist."""
    try:
        return str(socket.if_nametoindex(name))
    except OSError:
        return ""
