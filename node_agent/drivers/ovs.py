"""Open vSwitch: bridges and ports in its database, flows and meters in its switch.

Who deletes a device and makes it anew under its name leaves ovs-vswitchd (3.1, datapath netdev) with a dead socket: the
port carries nothing, and its columns, `ifindex` too, tell of the new device. So a port is added with the kernel's
number of its device, and one whose device bears another by now has no number.
"""

import json
import shutil
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from events.values import MacAddress
from node_agent.drivers.openflow import OpenFlow, Tables
from node_agent.drivers.ovsdb import STRANGERS, Ovsdb, Row, elements, pairs
from node_agent.drivers.sources import flows_of_bridge, switch_database
from node_agent.drivers.watching import Source
from node_agent.flows import Flow
from node_agent.gateway import Bridge
from node_agent.looks import look, look_again, look_ahead
from node_agent.meters import Meter
from node_agent.ports import Port
from node_agent.slices import HostRefused, HostUnreadable

COLUMNS: Final = {
    "Bridge": ("name", "datapath_type", "fail_mode", "protocols", "other_config", "ports", *STRANGERS),
    "Port": ("_uuid", "name", "tag", "trunks"),
    "Interface": ("name", "ofport", "error", "external_ids"),
    **{table: ("_uuid", known_by) for table, known_by in STRANGERS.values()},
}
DEVICE: Final = "sliceplane-ifindex"
"""Under which an interface's `external_ids` keep the kernel's number of its device."""
_NOT_IN_BAND: Final = "disable-in-band"


class OpenVSwitch:
    """`folder` is where OVS keeps its sockets (`/run/openvswitch`); `deadline` in seconds is each call's."""

    def __init__(self, folder: Path, deadline: float = 5.0) -> None:
        self._folder = folder
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

    def missing(self) -> tuple[str, ...]:
        return tuple(self._missing())

    def bridge(self, name: str) -> Bridge | None:
        rows = self._rows()
        found = [row for row in rows["Bridge"] if row["name"] == name]
        return _bridge(found[0], rows) if found else None

    def set_bridge(self, bridge: Bridge) -> None:
        columns = {
            "datapath_type": bridge.datapath_type,
            "fail_mode": "secure" if bridge.secure else "standalone",
            "protocols": sorted(bridge.protocols),
            "other_config": {"hwaddr": str(bridge.mac), _NOT_IN_BAND: json.dumps(not bridge.in_band)},
            **dict.fromkeys(STRANGERS, ()),
        }
        look_again()
        self._database.change(
            f"set bridge {bridge.name}",
            ("add_br", {"name": bridge.name, "may_exist": True, "datapath_type": bridge.datapath_type}),
            # One transaction: a bridge that is there is already secure.
            ("db_set", {"table": "Bridge", "record": bridge.name, **columns}),
        )

    def port(self, name: str) -> Port | None:
        rows = self._rows()
        own = next((row for row in rows["Port"] if row["name"] == name), None)
        holders = [row["name"] for row in rows["Bridge"] if own and own["_uuid"] in elements(row["ports"])]
        if own is None or not holders:
            return None
        numbers = [_number(row) for row in rows["Interface"] if row["name"] == name]
        vlans = frozenset((*elements(own["tag"]), *elements(own["trunks"])))
        return Port(name, holders[0], numbers[0] if numbers else None, vlans)

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
        if self.bridge(bridge) is None:
            return Tables({}, {})
        return look((self, "tables", bridge), lambda: self._openflow.ask_tables(bridge).answer())

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

    def _missing(self) -> Iterator[str]:
        if shutil.which("ovs-ofctl") is None:
            yield "program ovs-ofctl"
        try:
            self._rows()
        except HostUnreadable as error:
            yield str(error)


def _bridge(row: Row, rows: Mapping[str, list[Row]]) -> Bridge:
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
    )


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
