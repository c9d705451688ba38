"""Domain definitions of the agent, validated by libvirt itself: by its schema, its parser and its checks of a
definition.

No machine with a GPU or a fabric device was available, so no test starts a guest with one. These tests prove that
libvirt accepts the domains of such guests and interprets them as intended.
"""

import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import pytest
from hypothesis import HealthCheck, given, settings

from events.values import pci_address
from node_agent.drivers.machines.domain_xml import domain_xml, guest_in
from node_agent.drivers.sysfs import SysfsPci
from node_agent.host.guests import guest_for
from node_agent.host.host_resources import HostDevice, Place
from node_agent.lab.lab import Lab
from tests.contract.machines.hosts import HOSTING
from tests.node.guests import slice_on
from tests.node.hardware_trees import Tree, bluefield3, ethernet_only, hgx_h200, hgx_h200_roce
from tests.node.places import PLACES

pytestmark = pytest.mark.node
GIB: Final = 2**30
GUEST: Final = guest_for(slice_on(0))
EIGHT: Final = Place(
    devices=(
        *(HostDevice(pci_address(f"0000:{bus:02x}:00.0"), "gpu") for bus in range(0x40, 0x48)),
        *(HostDevice(pci_address(f"0000:{bus:02x}:00.0"), "fabric") for bus in range(0x50, 0x58)),
    ),
    pins=tuple(map(str, range(8))),
    nodeset="0",
    hugepage_kib=1048576,
    queues=8,
)


@pytest.fixture(scope="module")
def libvirtd(lab: Lab) -> Iterator[Any]:
    import libvirt

    connection = libvirt.open(
        f"qemu:///system?socket=/proc/{lab.node('lab-a').pid}/root/run/libvirt/libvirt-sock"
    )
    yield connection
    connection.close()


@contextmanager
def defined(libvirtd: Any, xml: str) -> Iterator[str]:
    """Define a libvirt domain and yield its XML as libvirt stored it. The domain is undefined afterwards."""
    import libvirt

    domain = libvirtd.defineXMLFlags(xml, libvirt.VIR_DOMAIN_DEFINE_VALIDATE)
    try:
        yield domain.XMLDesc()
    finally:
        domain.undefine()


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(place=PLACES)
def test_domain_with_any_assigned_host_resources_is_accepted_by_libvirt_and_read_back_as_the_same_guest(
    libvirtd: Any, place: Place
) -> None:
    guest = replace(GUEST, vcpus=4, memory_mib=1024, place=place)
    with defined(libvirtd, domain_xml(guest, HOSTING)) as made:
        assert guest_in(made) == guest


def test_guest_with_sixteen_pci_functions_has_a_root_port_for_each_and_a_pci_window_for_their_bars(
    libvirtd: Any,
) -> None:
    guest, bars = replace(GUEST, vcpus=8, memory_mib=8192, place=EIGHT), 8 * (256 * GIB, 32 * 2**20)
    with defined(libvirtd, domain_xml(guest, replace(HOSTING, bars=bars))) as made:
        devices = ET.fromstring(made).find("devices")
    assert devices is not None
    # libvirt would give managed functions to drivers of the host before the agent resets them.
    assert {each.get("managed") for each in devices.iterfind("hostdev")} == {"no"}
    ports = {port.get("index") for port in devices.iterfind("controller[@model='pcie-root-port']")}
    behind = [int(each.get("bus", ""), 16) for each in devices.iterfind("hostdev/address")]
    assert len({*behind}) == 16
    assert {str(bus) for bus in behind} <= ports
    assert window_of(devices) == 32 * GIB + 9 * 256 * GIB + 8 * 32 * 2**20


def window_of(devices: ET.Element | None) -> int:
    """Return the size in bytes of the guest address space for 64-bit BARs, which libvirt states in KiB."""
    assert devices is not None
    return int(devices.findtext("controller[@model='pcie-root']/pcihole64", "")) * 1024


@dataclass(frozen=True)
class RecordedHost:
    """A recorded tree, and for each of its NUMA nodes with GPUs or fabric devices the sizes in bytes of the BARs above
    1 GiB.
    """

    tree: Callable[[Path], Tree]
    bars: Mapping[int, tuple[int, ...]]


@pytest.mark.parametrize(
    "host",
    [
        RecordedHost(hgx_h200, {0: 4 * (256 * GIB,), 1: 4 * (256 * GIB,)}),
        RecordedHost(hgx_h200_roce, {0: 4 * (256 * GIB,), 1: 4 * (256 * GIB,)}),
        RecordedHost(bluefield3, {0: ()}),
        RecordedHost(ethernet_only, {0: (64 * GIB,)}),
    ],
    ids=lambda host: host.tree.__name__,
)
def test_domain_with_all_functions_of_a_numa_node_of_a_recorded_host_is_accepted_by_libvirt(
    libvirtd: Any, tmp_path: Path, host: RecordedHost
) -> None:
    bus = SysfsPci(host.tree(tmp_path).sysfs)
    found = [each for each in bus.devices() if each.kind in {"gpu", "fabric"}]
    assert {each.numa_node for each in found} == host.bars.keys()
    for node, large in host.bars.items():
        of_node = [each for each in found if each.numa_node == node]
        gpus = (HostDevice(each.address, "gpu") for each in of_node if each.kind == "gpu")
        fabric = (HostDevice(each.address, "fabric") for each in of_node if each.kind == "fabric")
        place = Place(devices=(*gpus, *fabric), nodeset=str(node))
        guest, bars = replace(GUEST, vcpus=8, memory_mib=8192, place=place), bus.bars(place.addresses)
        assert tuple(size for size in bars if size > GIB) == large
        with defined(libvirtd, domain_xml(guest, replace(HOSTING, bars=bars))) as made:
            assert guest_in(made) == guest
        domain = ET.fromstring(made)
        memory = domain.find("numatune/memory")
        assert memory is not None
        assert (memory.get("mode"), memory.get("nodeset")) == ("strict", str(node))
        if bars:
            assert window_of(domain.find("devices")) == 32 * GIB + sum(bars) + max(bars)


def test_kvm_cpu_definition_of_a_guest_with_gpus_passes_the_schema_of_libvirt(libvirtd: Any) -> None:
    import libvirt

    guest = replace(GUEST, vcpus=8, memory_mib=8192, place=EIGHT)
    xml = domain_xml(guest, replace(HOSTING, accelerator="kvm"))
    assert '<cpu mode="host-passthrough"><maxphysaddr mode="passthrough" /></cpu>' in xml
    # Without KVM the definition fails after this point: libvirt checks the schema first.
    has_kvm = "<domain type='kvm'" in libvirtd.getCapabilities()
    ending = nullcontext() if has_kvm else pytest.raises(libvirt.libvirtError, match="domaintype=kvm")
    with ending, defined(libvirtd, xml) as made:
        assert guest_in(made) == guest


@pytest.mark.parametrize(
    ("written", "wrong"),
    [
        ('mode="subsystem"', 'mode="whole"'),
        ('slot="0x00"', 'slot="0x40"'),
        ('name="ua-gpu0"', 'name="gpu 0"'),
        ('mode="strict"', 'mode="lenient"'),
        ('<page size="1048576"', '<page weight="1"'),
        ('vcpu="7"', 'vcpu="seven"'),
        ('queues="8"', 'queues="some"'),
        ('<maxphysaddr mode="passthrough"', '<maxphysaddr mode="guess"'),
    ],
)
def test_libvirt_refuses_an_invalid_domain_definition(libvirtd: Any, written: str, wrong: str) -> None:
    import libvirt

    guest = replace(GUEST, vcpus=8, memory_mib=8192, place=EIGHT)
    right = domain_xml(guest, replace(HOSTING, accelerator="kvm"))
    assert written in right
    refused = pytest.raises(libvirt.libvirtError, match="failed to validate against schema")
    with refused, defined(libvirtd, right.replace(written, wrong)):
        pass
