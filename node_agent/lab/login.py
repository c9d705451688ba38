"""Logging in to a guest from its node, or from outside, as a check that a slice can be used: the system's ssh(1), and
only the key given.

It enters that host's network namespace alone, so that the key file and the program are those of the machine. Nothing
of the user's own SSH set-up takes part: no agent, no configuration, no other key, no known hosts.
"""

import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from node_agent.lab.namespaces import LittleHost

OPTIONS: Final = {
    "BatchMode": "yes",
    "ConnectTimeout": "5",
    "GlobalKnownHostsFile": "/dev/null",
    "IdentitiesOnly": "yes",
    "IdentityAgent": "none",
    "LogLevel": "ERROR",
    "PreferredAuthentications": "publickey",
    # A guest makes its host key at boot: there is nothing to compare it with.
    "StrictHostKeyChecking": "no",
    "UserKnownHostsFile": "/dev/null",
}
_SSH_FAILED: Final = 255


class LoginFailed(Exception):
    """No session came about; `refused` tells a key that the guest does not take from all other reasons."""

    def __init__(self, address: str, said: str) -> None:
        super().__init__(f"no login at {address}: {said.strip()}")
        self.address = address
        self.refused = "Permission denied" in said


def login(
    host: LittleHost,
    address: str,
    private_key: Path,
    command: Sequence[str],
    *,
    seconds: float = 20.0,
    port: int = 22,
) -> subprocess.CompletedProcess[str]:
    """Run `command` as root in the guest that `host` finds at `address`; returns its exit code and output.

    The words of `command` are joined and read by the guest's shell, as ssh(1) does. Raises `LoginFailed`.
    """
    options = [*(f"-o{name}={value}" for name, value in OPTIONS.items()), "-p", str(port)]
    ssh = ["ssh", "-F", "none", "-n", "-T", *options, "-i", str(private_key), f"root@{address}", *command]
    done = subprocess.run(
        ["nsenter", f"--target={host.pid}", "--net", "--", *ssh],
        check=False,
        capture_output=True,
        text=True,
        timeout=seconds,
    )
    if done.returncode == _SSH_FAILED:
        raise LoginFailed(address, done.stderr)
    return done
