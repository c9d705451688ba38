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
from node_agent.lab.login import OPTIONS, LoginFailed, login
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
    """Sender that logs in to the guest. All commands share one SSH connection while `connected` lasts, because a key
    exchange takes the guest's emulated processor longer than any command.
    """

    def __init__(self, node: LabNode, private_key: Path) -> None:
        self._node, self._key = node, private_key
        self._control = private_key.with_name("control")

    @contextmanager
    def connected(self) -> Iterator[None]:
        """Keep one SSH connection to the guest open."""
        with subprocess.Popen(self._ssh("-M", "-N", f"root@{ALICE.ip}")) as master:
            try:
                eventually(self._control.exists, within=20)
                yield
            finally:
                master.terminate()

    def send(self, *frames: Packet) -> None:
        texts = (base64.b64encode(bytes(frame)).decode() for frame in frames)
        self.do(
            " && ".join(f"echo {text} | base64 -d | {SENDING_PROGRAM} -u - INTERFACE:eth0" for text in texts)
        )

    def do(self, script: str) -> str:
        """Run a shell script as root in the guest and return its output. Raises `AssertionError` if the
        script fails.
        """
        command = self._ssh(f"root@{ALICE.ip}", script)
        done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=20)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def answers(self) -> bool:
        with suppress(LoginFailed):
            return login(self._node, ALICE.ip, self._key, ["true"]).returncode == 0
        return False

    def _ssh(self, *words: str) -> list[str]:
        options = (f"-o{name}={value}" for name, value in OPTIONS.items())
        ssh = ["ssh", "-F", "none", "-n", "-T", *options, "-i", str(self._key), "-S", str(self._control)]
        return ["nsenter", f"--target={self._node.pid}", "--net", "--", *ssh, *words]


@contextmanager
def booted(node: LabNode, image: GuestImage) -> Iterator[FromGuest]:
    """Boot the virtual machine of the attacking slice (Alice) on its existing tap, as the agent does. At the end of
    the context, all virtual machines of the node are ended.
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
            with guest.connected():
                guest.do(f"arp -s {GATEWAY} {gateway_mac(GATEWAY)}")
                yield guest
