"""An image that nobody boots."""

from pathlib import Path
from typing import Final

from node_agent.images import Image
from tests.node.guests import IMAGE

LAB_GUEST: Final = Image(IMAGE, Path("/images/vmlinuz"), Path("/images/initrd.gz"), "console=ttyS0")
