"""Tests that a guest that is written as libvirt domain XML is read back as the same guest, whatever libvirt adds to the
XML.
"""

import re
import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from events.values import mac_address, pci_address
from node_agent.drivers.machines.domain_xml import (
    NotAGuest,
    domain_xml,
    guest_in,
    interfaces_in,
    pci_devices_in,
)
from node_agent.host.guests import Accelerator, Hosting, guest_for
from node_agent.host.host_resources import HostDevice, Place
from node_agent.host.images import Image
from tests.node.guests import FIRST, IMAGE, SECOND, slice_on
from tests.node.places import PLACES

GUEST: Final = guest_for(slice_on(0))
HOSTING: Final = Hosting(
    boot=Image(IMAGE, Path("/images/vmlinuz"), Path("/images/initrd.gz"), "console=ttyS0"),
    seed=Path("/disks/slice0/seed.iso"),
    console=Path("/disks/slice0/console.log"),
    accelerator="qemu",
    offload=True,
)

PLAIN: Final = (
    '<domain xmlns:sliceplane="urn:sliceplane:guest:1" type="qemu"><name>slice0</name><uuid>0f568161-2932-5e19-94f7-a4c12caf7598</uuid><metadata><sliceplane:guest allocation="alc-01jd0000000000000000000001" image="lab-guest" first-boot="c1da40106cb80d26e5bf5fdae74b85e22ee2eb8791e17dc0be9feffae649196c" boot="e7d64be3819f0962865e361d80700821df208bcb7cd06439c6a4e700dcc7301a" /></metadata>'
    '<memory unit="MiB">96</memory><vcpu>1</vcpu>'
    '<os><type arch="x86_64" machine="q35">hvm</type><kernel>/images/vmlinuz</kernel><initrd>/images/initrd.gz</initrd><cmdline>console=ttyS0</cmdline></os>'
    '<features><acpi /><apic /></features><pm><suspend-to-mem enabled="no" /><suspend-to-disk enabled="no" /></pm><on_poweroff>destroy</on_poweroff><on_reboot>restart</on_reboot><on_crash>destroy</on_crash>'
    '<devices><disk type="file" device="disk"><driver name="qemu" type="raw" /><source file="/disks/slice0/seed.iso" /><target dev="vda" bus="virtio" /><readonly /></disk>'
    '<interface type="ethernet"><mac address="52:54:00:00:00:01" /><target dev="slice0" managed="no" /><model type="virtio" /><rom enabled="no" /></interface>'
    '<serial type="pty"><log file="/disks/slice0/console.log" append="on" /></serial><graphics type="vnc"><listen type="none" /></graphics><video><model type="vga" /></video><rng model="virtio"><backend model="random">/dev/urandom</backend></rng><controller type="usb" model="none" /><memballoon model="none" /></devices></domain>'
)
"""The domain XML of a guest without assigned host resources. It must not change, because guests with this XML run on
nodes already.
"""
EARLIER: Final = re.sub(' boot="[0-9a-f]+"', "", PLAIN)
"""The domain XML of the same guest as an earlier release wrote it, without the digest of the boot files."""
HOSTINGS: Final = st.sampled_from([(True, "kvm"), (False, "qemu"), (False, "kvm")])


def device(path: str, hosting: Hosting = HOSTING) -> ET.Element:
    found = ET.fromstring(domain_xml(GUEST, hosting)).find(f"devices/{path}")
    assert found is not None
    return found


@given(st.integers(1, 256), st.integers(32, 2**21), PLACES, HOSTINGS)
def test_guest_written_as_libvirt_domain_xml_is_read_back_unchanged(
    vcpus: int, memory_mib: int, place: Place, hosting: tuple[bool, Accelerator]
) -> None:
    guest = replace(GUEST, vcpus=vcpus, memory_mib=memory_mib, place=place)
    offload, accelerator = hosting
    assert guest_in(domain_xml(guest, replace(HOSTING, offload=offload, accelerator=accelerator))) == guest


def test_domain_xml_of_a_guest_without_assigned_host_resources_equals_the_recorded_xml() -> None:
    assert domain_xml(GUEST, HOSTING) == PLAIN


def test_guest_in_domain_xml_written_by_an_earlier_release_equals_the_same_guest_of_this_release() -> None:
    assert EARLIER != PLAIN
    assert guest_in(EARLIER) == GUEST


DISPLAY: Final = '<listen type="none" />'
ADDED: Final = "</devices>"


@pytest.mark.parametrize(
    ("written", "altered", "reported"),
    [
        (
            "<kernel>/images/",
            "<kernel>/other/",
            "another boot configuration: /other/vmlinuz, /images/initrd.gz, ",
        ),
        (
            "<initrd>/images/",
            "<initrd>/other/",
            "another boot configuration: /images/vmlinuz, /other/initrd.gz, ",
        ),
        ("console=ttyS0", "init=/bin/sh", "command line 'init=/bin/sh'"),
        ('file="/disks/slice0/seed.iso"', 'file="/other.iso"', ", /other.iso, command line"),
        ("<readonly />", "", "writable disk vda"),
        ("<devices>", "<cputune><quota>1000</quota></cputune><devices>", "limit quota"),
        ("<devices>", "<memtune><hard_limit>1</hard_limit></memtune><devices>", "limit hard_limit"),
        (
            "<readonly />",
            "<readonly /><iotune><total_iops_sec>1</total_iops_sec></iotune>",
            "I/O limit (iotune) of disk vda",
        ),
        (
            '<target dev="slice0"',
            '<bandwidth><inbound average="1" /></bandwidth><target dev="slice0"',
            "limit bandwidth",
        ),
        (ADDED, '<disk type="block"><target dev="vdb" /></disk></devices>', "disk vdb"),
        (ADDED, '<disk type="file" device="cdrom"><target dev="sda" /></disk></devices>', "disk sda"),
        ('<target dev="slice0"', '<link state="down" /><target dev="slice0"', "link down"),
        ('<interface type="ethernet">', '<interface type="bridge">', "interface bridge"),
        (DISPLAY, '<listen type="address" address="0.0.0.0" />', "display vnc on 0.0.0.0"),
        (DISPLAY, '<listen type="socket" socket="/tmp/vnc" />', "display vnc on /tmp/vnc"),
        ('<graphics type="vnc">', '<graphics type="spice">', "display spice on no address"),
        (ADDED, '<graphics type="vnc"><listen type="none" /></graphics></devices>', "another graphics"),
        (ADDED, '<filesystem type="mount" /></devices>', "filesystem"),
        (ADDED, '<hostdev mode="subsystem" type="usb" /></devices>', "hostdev usb"),
        (ADDED, '<hostdev mode="subsystem" type="mdev" /></devices>', "hostdev mdev"),
        (ADDED, '<redirdev bus="usb" type="tcp" /></devices>', "redirdev"),
        (ADDED, '<channel type="unix" /></devices>', "channel"),
        (ADDED, "<vsock /></devices>", "vsock"),
        (ADDED, '<serial type="tcp" /></devices>', "another serial"),
        ('<serial type="pty">', '<serial type="tcp">', "serial tcp"),
        ('<backend model="random">', '<backend model="egd">', "rng egd"),
        (ADDED, '<input type="evdev" /></devices>', "input evdev"),
        (
            "<devices>",
            '<q:commandline xmlns:q="http://libvirt.org/schemas/domain/qemu/1.0" /><devices>',
            "qemu commandline",
        ),
    ],
)
def test_foreign_change_to_the_domain_xml_of_a_guest_is_reported_with_the_changed_part(
    written: str, altered: str, reported: str
) -> None:
    assert written in PLAIN
    (strange,) = guest_in(PLAIN.replace(written, altered, 1)).strange
    assert reported in strange


def test_domain_xml_elements_that_libvirt_adds_itself_are_not_foreign() -> None:
    added = (
        '<emulator>/usr/bin/qemu-system-x86_64</emulator><input type="mouse" bus="ps2" />'
        '<input type="keyboard" bus="ps2" /><console type="pty"><target type="serial" /></console>'
        '<controller type="pci" model="pcie-root-port" /><controller type="sata" /><audio id="1" type="none" />'
        '<watchdog model="itco" action="reset" /><panic model="isa" /></devices>'
    )
    up = PLAIN.replace('<target dev="slice0"', '<link state="up" /><target dev="slice0"')
    assert guest_in(up.replace("</devices>", added)) == GUEST


@given(PLACES)
def test_every_pci_function_assigned_in_domain_xml_is_listed_for_its_domain(place: Place) -> None:
    assert {*pci_devices_in(domain_xml(replace(GUEST, place=place), HOSTING))} == place.addresses


def test_pci_function_that_any_libvirt_domain_uses_as_an_nvme_disk_is_listed_for_this_domain() -> None:
    address = "<address domain='0x0000' bus='0x01' slot='0x00' function='0x0'/>"
    disk = f"<disk type='nvme'><source type='pci' managed='yes' namespace='1'>{address}</source></disk>"
    usb = "<hostdev type='usb'><source><address bus='1' device='3'/></source></hostdev>"
    assert pci_devices_in(f"<domain><devices>{disk}{usb}</devices></domain>") == ("0000:01:00.0",)


def test_pci_function_attached_to_a_guest_by_another_program_is_read_as_a_device_that_was_not_ordered() -> (
    None
):
    given = Place((HostDevice(pci_address("0000:1b:00.0"), "gpu"),))
    attached = domain_xml(replace(GUEST, place=given), HOSTING).replace("ua-gpu0", "hostdev0")
    assert guest_in(attached).place.devices == (HostDevice(pci_address("0000:1b:00.0"), "unordered"),)


def test_memory_of_a_guest_is_read_in_the_unit_that_the_domain_xml_states() -> None:
    answered = domain_xml(GUEST, HOSTING).replace('unit="MiB">96<', 'unit="KiB">98304<')
    assert guest_in(answered) == GUEST


def test_guests_that_differ_only_in_host_paths_or_accelerator_compare_as_equal() -> None:
    elsewhere = replace(HOSTING, seed=Path("/other/seed.iso"), accelerator="kvm", offload=False)
    assert guest_in(domain_xml(GUEST, elsewhere)) == GUEST


def test_guests_with_different_macs_compare_as_different() -> None:
    moved = domain_xml(GUEST, HOSTING).replace(GUEST.mac, "52:54:00:ff:ff:ff")
    assert guest_in(moved) == replace(GUEST, mac=mac_address("52:54:00:ff:ff:ff"))


def test_libvirt_domain_without_the_agents_metadata_is_not_read_as_a_guest() -> None:
    with pytest.raises(NotAGuest):
        guest_in("<domain><name>slice0</name></domain>")


def test_second_network_interface_in_the_domain_xml_of_a_guest_is_reported_as_an_addition() -> None:
    domain = ET.fromstring(domain_xml(GUEST, HOSTING))
    devices, interface = domain.find("devices"), domain.find("devices/interface")
    assert devices is not None
    assert interface is not None
    devices.append(interface)
    assert guest_in(ET.tostring(domain, encoding="unicode")) == replace(GUEST, strange=("another interface",))


def test_taps_and_macs_are_listed_for_any_libvirt_domain() -> None:
    theirs = "<domain><devices><interface><mac address='52:54:00:00:00:01'/><target dev='tap9'/></interface></devices></domain>"
    assert interfaces_in(theirs) == ("52:54:00:00:00:01", "tap9")


def test_domain_uuids_differ_between_slots_of_one_allocation_and_between_allocations() -> None:
    uuids = {
        guest_for(slice_on(index, allocation)).uuid for index in range(4) for allocation in (FIRST, SECOND)
    }
    assert len(uuids) == 8


def test_domain_xml_declares_the_tap_of_a_guest_as_not_managed_by_libvirt() -> None:
    assert device("interface/target").attrib == {"dev": "slice0", "managed": "no"}


def test_domain_xml_declares_a_display_that_listens_on_no_address() -> None:
    assert device("graphics/listen").attrib == {"type": "none"}


def test_domain_xml_declares_the_seed_image_of_a_guest_as_read_only() -> None:
    assert device("disk/readonly") is not None
    assert device("disk/source").get("file") == "/disks/slice0/seed.iso"


def test_domain_xml_of_a_guest_declares_no_writable_disk() -> None:
    disks = ET.fromstring(domain_xml(GUEST, HOSTING)).findall("devices/disk")
    assert [disk for disk in disks if disk.find("readonly") is None] == []


def test_domain_xml_disables_checksum_offload_of_a_guest_if_the_switch_does_not_support_it() -> None:
    assert device("interface/driver/host", replace(HOSTING, offload=False)).get("csum") == "off"


def test_domain_xml_of_a_guest_contains_neither_its_ssh_keys_nor_its_hostname() -> None:
    machine = slice_on(0).machine
    written = domain_xml(GUEST, HOSTING)
    assert not [secret for secret in (machine.hostname, *machine.ssh_authorized_keys) if secret in written]
