"""Domain definitions of the agent, validated by libvirt itself: by its schema, its parser and its checks of a
definition.

No machine with a GPU or a fabric device was available, so no test starts a guest with one. These tests prove that
libvirt accepts the domains of such guests and interprets them as intended.
"""

import xml.etree.ElementTree as ET
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import Any, Final

import pytest
from hypothesis import HealthCheck, given, settings

from events.values import pci_address
from node_agent.drivers.machines.domain_xml import domain_xml, guest_in
from node_agent.host.guests import guest_for
from node_agent.host.host_resources import HostDevice, Place
from node_agent.lab.lab import Lab
from tests.contract.machines.hosts import HOSTING
from tests.node.guests import slice_on
from tests.node.places import PLACES

pytestmark = pytest.mark.node
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


def test_guest_with_sixteen_pci_functions_has_a_root_port_for_each_and_a_pci_window_for_eight_gpus(
    libvirtd: Any,
) -> None:
    guest = replace(GUEST, vcpus=8, memory_mib=8192, place=EIGHT)
    with defined(libvirtd, domain_xml(guest, HOSTING)) as made:
        devices = ET.fromstring(made).find("devices")
    assert devices is not None
    ports = {port.get("index") for port in devices.iterfind("controller[@model='pcie-root-port']")}
    behind = [int(each.get("bus", ""), 16) for each in devices.iterfind("hostdev/address")]
    assert len({*behind}) == 16
    assert {str(bus) for bus in behind} <= ports
    assert devices.findtext("controller[@model='pcie-root']/pcihole64") == str(9 * 256 * 1024 * 1024)


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
