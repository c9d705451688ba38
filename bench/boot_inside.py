"""`python -m bench.boot_inside DOMAIN ADDRESS`: end a guest and boot it again by plain `virsh`, on the host it runs on.

Prints the seconds from `virsh create` to its SSH banner. Its tap, switch port and reservation are there already.
"""

import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

from events.values import ipv4_address
from node_agent.host import Answered
from node_agent.readiness import BannerProbe

_VIRSH: Final = ("virsh", "-q", "-c", "qemu:///system")
_PORT: Final = 22
_BANNER: Final = "SSH-"
_PATIENCE: Final = 120.0


def main(domain: str, address: str) -> None:
    described = _virsh("dumpxml", domain)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "domain.xml"
        file.write_text(described)
        _virsh("destroy", domain)
        began = time.monotonic()
        _virsh("create", str(file))
    probe, asked = BannerProbe(), ipv4_address(address)
    while not isinstance(probe(asked, _PORT, _BANNER), Answered):
        if time.monotonic() > began + _PATIENCE:
            sys.exit(f"no banner within {_PATIENCE:.0f} s")
        time.sleep(0.01)
    sys.stdout.write(f"{time.monotonic() - began}\n")


def _virsh(*words: str) -> str:
    return subprocess.run([*_VIRSH, *words], check=True, capture_output=True, text=True).stdout


if __name__ == "__main__":
    main(*sys.argv[1:])
