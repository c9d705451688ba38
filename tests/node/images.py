"""Guest image for tests, which is never booted."""

from pathlib import Path
from typing import Final

from node_agent.host.images import Image
from tests.node.guests import IMAGE

LAB_GUEST: Final = Image(IMAGE, Path("/images/vmlinuz"), Path("/images/initrd.gz"), "console=ttyS0")
