"""What a leak check looks at: a host in its namespaces, or the file of a simulated one.

A target is kept in its snapshot, so that the comparison looks at the same things; no secret is in it (the address of
Redis with its password stays in a file of its own).
"""

import subprocess
from pathlib import Path
from typing import Final

import msgspec

from node_agent.lab.inside import enter

LOOK_SECONDS: Final = 20.0


class CouldNotLook(Exception):
    """A kind of object could not be read; nothing may be said about leaks of that kind."""


class HostTarget(msgspec.Struct, frozen=True, tag="host", forbid_unknown_fields=True):
    """`pid` is a process in the host's namespaces; paths are as that process sees them.

    `slices` is the range of the slices' addresses: only tracked connections with one of them are slices' own.
    `namespace` is the prefix of the node's keys in the Redis whose URL stands in `redis_url_file`.
    """

    pid: int
    disks: str
    dhcp_hosts: str
    dhcp_leases: str
    slices: str
    redis_url_file: str
    namespace: str

    def read(self, *argv: str) -> str:
        """What a command prints inside the host. Raises `CouldNotLook`."""
        command = [*enter(self.pid), *argv]
        try:
            done = subprocess.run(
                command,
                capture_output=True,
                check=False,
                text=True,
                timeout=LOOK_SECONDS,
                stdin=subprocess.DEVNULL,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise CouldNotLook(f"{argv[0]}: {error}") from error
        if done.returncode:
            raise CouldNotLook(f"{argv[0]} exited {done.returncode}: {done.stderr.strip()}")
        return done.stdout

    def path(self, inside: str) -> Path:
        """A path of the host's as this machine reaches it (proc(5), /proc/pid/root)."""
        return Path(f"/proc/{self.pid}/root") / inside.lstrip("/")

    def files(self, inside: str) -> dict[str, Path]:
        """Every file below a folder of the host's, by its name there.

        An agent makes the folder when it has something to put in: none means no files, but where not even
        the folder above exists, the path is wrong, and that must not pass for "clean". Raises `CouldNotLook`.
        """
        folder = self.path(inside)
        if not folder.parent.is_dir():
            raise CouldNotLook(f"neither {inside} nor the folder above it exists")
        return {str(path.relative_to(folder)): path for path in folder.rglob("*") if not path.is_dir()}


class SimulatedTarget(msgspec.Struct, frozen=True, tag="simulated", forbid_unknown_fields=True):
    """`state` is the file in which a simulated host keeps itself."""

    state: str


Target = HostTarget | SimulatedTarget
