"""`python -m bench.nodes.boot_inside DOMAIN ADDRESS`: destroy a guest on this host and boot it again with `virsh`.

Prints the seconds from `virsh create` to the guest's SSH banner. Tap device, switch port and DHCP reservation are kept.
"""

import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

from events.values import ipv4_address
from node_agent.host.host import Answered
from node_agent.slots.readiness import BannerProbe

_VIRSH: Final = ("virsh", "-q", "-c", "qemu:///system")
_PORT: Final = 22
_BANNER: Final = "SSH-"
_TIMEOUT_SECONDS: Final = 120.0


def main(domain: str, address: str) -> None:
    domain_xml = _virsh("dumpxml", domain)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "domain.xml"
        file.write_text(domain_xml)
        _virsh("destroy", domain)
        began = time.monotonic()
        _virsh("create", str(file))
    probe, guest = BannerProbe(), ipv4_address(address)
    while not isinstance(probe(guest, _PORT, _BANNER), Answered):
        if time.monotonic() > began + _TIMEOUT_SECONDS:
            sys.exit(f"the guest at {address} sent no SSH banner within {_TIMEOUT_SECONDS:.0f} s")
        time.sleep(0.01)
    sys.stdout.write(f"{time.monotonic() - began}\n")


def _virsh(*words: str) -> str:
    return subprocess.run([*_VIRSH, *words], check=True, capture_output=True, text=True).stdout


if __name__ == "__main__":
    main(*sys.argv[1:])
