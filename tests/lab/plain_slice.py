"""Virtual machine with its network on a lab node, created with ordinary commands of a host and without any code of the
agent.

It shows that a lab node can carry a slice, and gives the leak checker objects to find.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from node_agent.aspects.seed import seed_image
from node_agent.lab.guest import GuestImage
from node_agent.lab.namespaces import LabHost
from tests.lab.awaiting import eventually

BRIDGE: Final = "br-plain"
TAP: Final = "tap-plain"
MAC: Final = "52:54:00:00:00:09"
ADDRESS: Final = "10.99.0.9"
GATEWAY: Final = "10.99.0.1"
URI: Final = "qemu:///system"
_DEFINITION: Final = "domain.xml"
DOMAIN: Final = "plain"

_XML: Final = """\
<domain type='qemu'><name>{name}</name><memory unit='MiB'>96</memory><vcpu>1</vcpu>
<os><type arch='x86_64' machine='q35'>hvm</type><kernel>{image.kernel}</kernel><initrd>{image.initrd}</initrd>
<cmdline>{image.cmdline}</cmdline></os><features><acpi/></features>
<devices><emulator>/usr/bin/qemu-system-x86_64</emulator>
<disk type='file' device='disk'><driver name='qemu' type='raw'/><source file='{seed}'/>
<target dev='vda' bus='virtio'/><readonly/></disk>
<interface type='ethernet'><mac address='{mac}'/><target dev='{tap}' managed='no'/><model type='virtio'/>
<driver name='qemu'><host csum='off' gso='off' tso4='off' tso6='off' ecn='off' ufo='off'/></driver>
<rom enabled='no'/></interface>
<rng model='virtio'><backend model='random'>/dev/urandom</backend></rng>
<serial type='file'><source path='{serial}'/></serial>
<graphics type='vnc'><listen type='none'/></graphics>
</devices></domain>
"""


@contextmanager
def network(node: LabHost, folder: Path) -> Iterator[Path]:
    """Create a bridge with a gateway address, a tap, and a dnsmasq with one reservation. Yield the path of the DHCP
    lease file.
    """
    leases = folder / "leases"
    node.run(["ovs-vsctl", "add-br", BRIDGE, "--", "set", "bridge", BRIDGE, "datapath_type=netdev"])
    node.run(["ip", "tuntap", "add", "dev", TAP, "mode", "tap"])
    node.run(["ip", "address", "add", f"{GATEWAY}/24", "dev", BRIDGE])
    for link in (BRIDGE, TAP):
        node.run(["ip", "link", "set", link, "up"])
    node.run(["ovs-vsctl", "add-port", BRIDGE, TAP])
    node.start_daemon("dnsmasq", _dnsmasq(leases))
    try:
        eventually(lambda: "dnsmasq" in node.daemons())
        yield leases
    finally:
        node.stop_daemon("dnsmasq")
        node.run(["ovs-vsctl", "--if-exists", "del-br", BRIDGE])
        node.run(["ip", "link", "del", TAP])


def _dnsmasq(leases: Path) -> list[str]:
    options = {
        "conf-file": "/dev/null",
        "port": "0",
        "interface": BRIDGE,
        "dhcp-range": f"{GATEWAY},static",
        "dhcp-host": f"{MAC},{ADDRESS},infinite",
        "dhcp-leasefile": str(leases),
    }
    flags = [
        "--keep-in-foreground",
        "--bind-interfaces",
        "--no-ping",
        "--dhcp-authoritative",
        "--log-facility=-",
    ]
    return ["dnsmasq", *flags, *(f"--{name}={value}" for name, value in options.items())]


def start_guest(node: LabHost, folder: Path) -> None:
    """Start the guest from the domain definition that `guest` has written to this folder."""
    node.run(["virsh", "--connect", URI, "create", str(folder / _DEFINITION)])


@contextmanager
def guest(node: LabHost, image: GuestImage, folder: Path, hostname: str, keys: list[str]) -> Iterator[Path]:
    """Start a guest on the tap of `network` and yield the path of its serial console log."""
    seed, serial = folder / "seed.iso", folder / "serial.log"
    seed.write_bytes(seed_image(hostname, keys, "plain-1"))
    definition = _XML.format(name=DOMAIN, image=image, seed=seed, mac=MAC, tap=TAP, serial=serial)
    (folder / _DEFINITION).write_text(definition)
    start_guest(node, folder)
    try:
        yield serial
    finally:
        node.run(["virsh", "--connect", URI, "destroy", DOMAIN], check=False)
