"""The target of a leak check: a host in its namespaces, or the state file of a simulated host.

A snapshot contains its target, so that a comparison reads the same objects. A target contains no secret: the URL of
Redis with its password is stored in a separate file.
"""

import subprocess
from pathlib import Path
from typing import Final

import msgspec

from node_agent.lab.namespace_access import enter

COMMAND_SECONDS: Final = 20.0


class TargetUnreadable(Exception):
    """Objects of one kind could not be read, so that leaks of that kind are unknown."""


class HostTarget(msgspec.Struct, frozen=True, tag="host", forbid_unknown_fields=True):
    """A host to check for leaks, in its own namespaces.

    `pid` is a process in these namespaces, and paths are relative to the root of that process. `slices` is the subnet
    of the slices' addresses, which selects the tracked connections of slices. `namespace` is the prefix of the node's
    Redis keys, and `redis_url_file` the path of a file with the URL of Redis.
    """

    pid: int
    disks: str
    dhcp_hosts: str
    dhcp_leases: str
    slices: str
    redis_url_file: str
    namespace: str
    root_disks: str | None = None

    def read(self, *argv: str) -> str:
        """Run a command in the namespaces of the checked host and return its output. Raises `TargetUnreadable`."""
        command = [*enter(self.pid), *argv]
        try:
            done = subprocess.run(
                command,
                capture_output=True,
                check=False,
                text=True,
                timeout=COMMAND_SECONDS,
                stdin=subprocess.DEVNULL,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise TargetUnreadable(f"cannot run {argv[0]}: {error}") from error
        if done.returncode:
            raise TargetUnreadable(
                f"the program {argv[0]} exited with code {done.returncode}: {done.stderr.strip()}"
            )
        return done.stdout

    def path(self, inside: str) -> Path:
        """Convert a path of the checked host to a path of this machine (proc(5), /proc/pid/root)."""
        return Path(f"/proc/{self.pid}/root") / inside.lstrip("/")

    def files(self, inside: str) -> dict[str, Path]:
        """Return the files below a folder of the host, by their relative names. Raises `TargetUnreadable`.

        The agent creates the folder when it writes the first file, so a missing folder means no files. If the parent
        folder is also missing, the path is wrong, which must not be reported as clean.
        """
        folder = self.path(inside)
        if not folder.parent.is_dir():
            raise TargetUnreadable(
                f"neither the folder {inside} nor its parent folder exists; check the path"
            )
        return {str(path.relative_to(folder)): path for path in folder.rglob("*") if not path.is_dir()}


class SimulatedTarget(msgspec.Struct, frozen=True, tag="simulated", forbid_unknown_fields=True):
    """A simulated host to check for leaks. `state` is the path of its state file."""

    state: str


Target = HostTarget | SimulatedTarget
