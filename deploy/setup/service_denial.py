"""Denial of service starts during package installation: Debian's policy-rc.d(8) returns 101 for every request.

An existing policy of the user is moved aside and restored afterwards. The lock is held throughout, so that of two
concurrent set-ups neither mistakes the other's policy for the user's. After a crash the denying policy stays in place;
it is identified by its text. The next call restores the user's policy first, whichever run was interrupted.
"""

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

POLICY: Final = Path("/usr/sbin/policy-rc.d")
LOCK: Final = Path("/run/lock/sliceplane-setup")
_SET_ASIDE: Final = ".before-sliceplane"
_MARK: Final = "#!/bin/sh\n# Put here by Sliceplane's set-up while it installs packages; safe to remove.\n"


@contextmanager
def services_denied(policy: Path = POLICY, lock: Path = LOCK) -> Iterator[None]:
    """Deny every service start during the `with` block, and restore the previous policy afterwards, also on Ctrl-C."""
    aside = policy.with_name(policy.name + _SET_ASIDE)
    lock.parent.mkdir(parents=True, exist_ok=True)
    with lock.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        _restore(policy, aside)
        if _exists(policy):
            policy.rename(aside)
        try:
            policy.write_text(_MARK + "exit 101\n")
            policy.chmod(0o755)
            yield
        finally:
            _restore(policy, aside)


def _restore(policy: Path, aside: Path) -> None:
    if policy.is_file() and policy.read_text(errors="replace").startswith(_MARK):
        policy.unlink()
    if _exists(aside):
        aside.rename(policy)


def _exists(path: Path) -> bool:
    return path.is_symlink() or path.exists()  # a dangling link is the user's file too
