"""Senders of frames from the attacking slice (Alice): the test process itself, which holds the slice's tap open, or a
guest on this tap.
"""

import base64
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Final, Protocol

from scapy.packet import Packet

from events.values import SshPublicKey
from node_agent.aspects.flows import gateway_mac
from node_agent.lab.guest import GuestImage
from node_agent.lab.lab import LabNode
from node_agent.lab.login import LoginFailed, login
from tests.agent.eventually import eventually
from tests.contract.machines.hosts import machines_of, real_host, store_image
from tests.contract.network.slices import GATEWAY, network, run, slice_on
from tests.contract.network.traffic.wire import Wire
from tests.node.guests import IMAGE

ALICE: Final = network(0)
SENDING_PROGRAM: Final = "socat"
"""A Debian package and its program: each read of its standard input leaves unchanged as one frame."""


class Sender(Protocol):
    def send(self, *frames: Packet) -> None:
        """Send the frames from the slice in this order; return when the last one is sent."""
        ...


class FromTap:
    def __init__(self, wire: Wire) -> None:
        self._wire = wire

    def send(self, *frames: Packet) -> None:
        for frame in frames:
            self._wire.send(frame)


class FromGuest:
    def __init__(self, node: LabNode, private_key: Path) -> None:
        self._node, self._key = node, private_key

    def send(self, *frames: Packet) -> None:
        texts = (base64.b64encode(bytes(frame)).decode() for frame in frames)
        self.do(
            " && ".join(f"echo {text} | base64 -d | {SENDING_PROGRAM} -u - INTERFACE:eth0" for text in texts)
        )

    def do(self, script: str) -> str:
        """Run a shell script as root in the guest and return its output. Raises `AssertionError` if the
        script fails.
        """
        done = login(self._node, ALICE.ip, self._key, [script])
        assert done.returncode == 0, done.stderr
        return done.stdout

    def answers(self) -> bool:
        with suppress(LoginFailed):
            return self.do("true") == ""
        return False


@contextmanager
def booted(node: LabNode, image: GuestImage) -> Iterator[FromGuest]:
    """Boot the virtual machine of the attacking slice (Alice) on its existing tap, as the agent does. All other virtual
    machines of the node are ended with it.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        # QEMU's images are below it.
        folder.chmod(0o755)
        store_image(folder, image)
        key = folder / "key"
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)], check=True)
        wanted = slice_on(ALICE)
        public_key = SshPublicKey(key.with_suffix(".pub").read_text().strip())
        machine = wanted.machine.model_copy(update={"image": IMAGE, "ssh_authorized_keys": (public_key,)})
        with real_host(node, folder) as host:
            run(machines_of(host).to_apply(replace(wanted, machine=machine)))
            guest = FromGuest(node, key)
            eventually(guest.answers, within=60)
            # Forged answers, while a guard is removed, must not disconnect the guest from the test that logs in to it.
            guest.do(f"arp -s {GATEWAY} {gateway_mac(GATEWAY)}")
            yield guest
