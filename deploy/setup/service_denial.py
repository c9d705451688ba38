"""While packages are installed, no service starts: Debian's policy-rc.d(8) says 101 to every request.

A policy of the user's own is moved aside and put back. The lock is held throughout, so that two set-ups never take
each other's policy for the user's. A crash leaves our policy in place, known by its text; the next entry puts
the user's back first, whether or not that run is ours.
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
    """Denies every service start while the body runs; restores what was there, also on Ctrl-C."""
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
    return path.is_symlink() or path.exists()  # a link into nowhere is somebody's too
