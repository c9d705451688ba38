"""An SSH gateway process on the database of a test control plane, and OpenSSH clients of it."""

import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Thread
from typing import Final

from control_plane.cli.own_keys import make_key_pair
from control_plane.programs import SERVER, Program
from deploy.embedded.children import Child, installed_program
from tests.servers.plane import RunningPlane, free_port
from tests.waiting import until

GREETING: Final = b"SSH-2.0-simulated\r\n"
"""First output of the SSH port of a simulated guest."""


@dataclass(frozen=True)
class KeyPair:
    """A key pair of a caller."""

    file: Path

    @property
    def public(self) -> str:
        return self.file.with_name(f"{self.file.name}.pub").read_text().strip()


def key_pair(folder: Path, name: str) -> KeyPair:
    make_key_pair(folder / name, name)
    return KeyPair(folder / name)


@dataclass(frozen=True)
class Gateway:
    """A running gateway process."""

    child: Child
    port: int
    known_hosts: Path

    def command(self, user: str, key: KeyPair, *words: str) -> list[str]:
        """Return the command line of a client that connects to the gateway."""
        options = {
            "UserKnownHostsFile": str(self.known_hosts),
            "StrictHostKeyChecking": "yes",
            "IdentitiesOnly": "yes",
            "BatchMode": "yes",
            "ConnectTimeout": "10",
        }
        given = (part for name, value in options.items() for part in ("-o", f"{name}={value}"))
        return ["ssh", "-F", "none", *given, "-i", str(key.file), "-p", str(self.port), "-l", user, *words]

    def refusal(self, user: str, key: KeyPair, *words: str) -> str:
        """Run a client that the gateway has to refuse, and return its errors."""
        run = subprocess.run(
            self.command(user, key, *words),
            stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=30, check=False,
        )  # fmt: skip
        assert (run.returncode, run.stdout) == (255, ""), run
        return run.stderr

    @contextmanager
    def connection(self, user: str, key: KeyPair, to: str = "slice:22") -> Iterator["Client"]:
        """Provide a client that is connected to a port through the gateway, as `ssh -J` uses it."""
        client = Client(self.command(user, key, "-W", to, "127.0.0.1"))
        try:
            yield client
        finally:
            client.end()


class Client:
    """A running client, of which the input and output are those of the connection."""

    def __init__(self, command: Sequence[str]) -> None:
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0
        )
        self._errors: list[bytes] = []
        self._reader = Thread(target=self._read_errors)
        self._reader.start()

    def _read_errors(self) -> None:
        stream = self._process.stderr
        assert stream is not None
        self._errors.extend(iter(lambda: stream.read(4096), b""))

    def read(self, count: int) -> bytes:
        """Return the next `count` bytes, or fewer at the end of the connection."""
        assert self._process.stdout is not None
        found = b""
        while len(found) < count and (part := self._process.stdout.read(count - len(found))):
            found += part
        return found

    def write(self, data: bytes) -> None:
        assert self._process.stdin is not None
        while data:
            data = data[self._process.stdin.write(data) or 0 :]

    def echo(self, text: bytes) -> None:
        """Assert that the connection returns a text."""
        self.write(text)
        assert self.read(len(text)) == text

    def errors(self, seconds: float = 10.0) -> str:
        """Wait for the end of the client, and return its errors."""
        self._process.wait(seconds)
        self._reader.join()
        return b"".join(self._errors).decode()

    def close_input(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()

    def end(self) -> None:
        self._process.kill()
        self._process.wait()
        self._reader.join()


@contextmanager
def gateway_process(plane: RunningPlane, folder: Path, **settings: str) -> Iterator[Gateway]:
    """Run the SSH gateway as a process. `settings` are added to its environment variables."""
    host_key, port = key_pair(folder, "host-key"), free_port()
    known_hosts = folder / "known_hosts"
    known_hosts.write_text(f"[127.0.0.1]:{port} {host_key.public}\n")
    environment = {
        "SLICEPLANE_DATABASE_URL": plane.settings.database_url.get_secret_value(),
        "SLICEPLANE_REDIS_URL": plane.settings.redis_url.get_secret_value(),
        "SLICEPLANE_SIGNING_KEY_FILE": str(plane.settings.signing_key_file),
        "SLICEPLANE_SSH_GATEWAY_LISTEN": f"127.0.0.1:{port}",
        "SLICEPLANE_SSH_GATEWAY_HOST_KEY_FILE": str(host_key.file),
        **settings,
    }
    log = folder / "ssh-gateway.log"
    child = Child("ssh-gateway", installed_program(SERVER, Program.SSH_GATEWAY), log, environment)
    try:
        child.start()
        until(lambda: "ssh_gateway_serving" in log.read_text(), "the gateway serves")
        yield Gateway(child, port, known_hosts)
    finally:
        child.stop()
