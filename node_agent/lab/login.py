"""SSH login to a guest from a lab host, with the system's ssh(1) and one key. It shows that a slice is usable.

The ssh process enters only the network namespace of the lab host: the program and the key file are those of the machine
that runs the lab. The user's SSH configuration, agent, other keys and known hosts are ignored.
"""

import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from node_agent.lab.namespaces import LabHost

OPTIONS: Final = {
    "BatchMode": "yes",
    "ConnectTimeout": "5",
    "GlobalKnownHostsFile": "/dev/null",
    "IdentitiesOnly": "yes",
    "IdentityAgent": "none",
    "LogLevel": "ERROR",
    "PreferredAuthentications": "publickey",
    # A guest generates its host key at boot, so there is no known key to compare it with.
    "StrictHostKeyChecking": "no",
    "UserKnownHostsFile": "/dev/null",
}
_SSH_FAILED: Final = 255


class LoginFailed(Exception):
    """An SSH login to a guest failed. `refused` is true if the guest refused the key, and false for any other cause."""

    def __init__(self, address: str, output: str) -> None:
        super().__init__(f"login at {address} failed: {output.strip()}")
        self.address = address
        self.refused = "Permission denied" in output


def login(
    host: LabHost,
    address: str,
    private_key: Path,
    command: Sequence[str],
    *,
    seconds: float = 20.0,
    port: int = 22,
) -> subprocess.CompletedProcess[str]:
    """Run `command` as root in the guest that `host` reaches at `address`; return its exit code and output.

    The guest's shell parses the joined words of `command`, as usual for ssh(1). Raises `LoginFailed`.
    """
    done = subprocess.run(
        ["nsenter", f"--target={host.pid}", "--net", "--", *ssh(address, private_key, command, port)],
        check=False,
        capture_output=True,
        text=True,
        timeout=seconds,
    )
    if done.returncode == _SSH_FAILED:
        raise LoginFailed(address, done.stderr)
    return done


def ssh(address: str, private_key: Path, command: Sequence[str], port: int = 22) -> list[str]:
    """Return the command line that runs `command` as root in the guest at `address`."""
    options = [*(f"-o{name}={value}" for name, value in OPTIONS.items()), "-p", str(port)]
    return ["ssh", "-F", "none", "-n", "-T", *options, "-i", str(private_key), f"root@{address}", *command]
