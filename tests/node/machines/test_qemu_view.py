"""Tests of devices that QEMU reports and the libvirt domain does not show. The QEMU responses were recorded from a
guest of Sliceplane on QEMU 7.2.
"""

from typing import Any, Final

import pytest

from node_agent.drivers.machines.qemu_view import foreign_devices

XML: Final = "".join(f"<alias name='{name}'/>" for name in ("pci.1", "net0", "rng0", "serial0"))
NETWORK: Final = (
    "net0: index=0,type=nic,model=virtio-net-pci,macaddr=52:54:00:01:00:00\r\n"
    " \\ hostnet0: index=0,type=tap,fd=30\r\n"
)
AS_WRITTEN: Final[dict[str, Any]] = {
    "/machine/peripheral": [
        {"name": "type", "type": "string"},
        {"name": "pci.1", "type": "child<pcie-root-port>"},
        {"name": "net0", "type": "child<virtio-net-pci>"},
    ],
    "/machine/peripheral-anon": [{"name": "type", "type": "string"}],
    "/objects": [
        {"name": "objrng0", "type": "child<rng-random>"},
        {"name": "pc.ram", "type": "child<memory-backend-ram>"},
    ],
    "query-chardev": [
        {"label": "charserial0", "filename": "pty:/dev/pts/0"},
        {"label": "charmonitor", "filename": "unix:/monitor.sock"},
    ],
    "human-monitor-command": NETWORK,
}


def foreign(**added: Any) -> list[str]:
    answers = {
        key: value + added.get(key.rpartition("/")[2].replace("-", "_"), type(value)())
        for key, value in AS_WRITTEN.items()
    }
    return list(foreign_devices(XML, lambda command, arguments: answers[arguments.get("path", command)]))


def test_virtual_machine_as_libvirt_started_it_has_no_foreign_devices_in_qemu() -> None:
    assert foreign() == []


@pytest.mark.parametrize(
    ("where", "added", "found"),
    [
        ("peripheral", [{"name": "y", "type": "child<e1000>"}], "device y (e1000)"),
        ("peripheral_anon", [{"name": "device[0]", "type": "child<e1000>"}], "device (e1000)"),
        ("objects", [{"name": "f", "type": "child<filter-redirector>"}], "object f (filter-redirector)"),
        ("query_chardev", [{"label": "x", "filename": "null"}], "character device x (null)"),
        ("human_monitor_command", "x: index=0,type=user,net=10.0.2.0\r\n", "network back end x"),
    ],
)
def test_device_added_through_the_qemu_monitor_is_foreign(where: str, added: Any, found: str) -> None:
    assert foreign(**{where: added}) == [found]
