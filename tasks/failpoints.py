"""Named places where a process can be made to die, for tests that prove nothing is lost there.

`failpoint("intake.appended")` does nothing unless `SLICEPLANE_FAILPOINTS` armed that name before the process
started (`arm_from` reads it once, in each program's main): then the process kills itself as `kill -9` would, at
the armed visit. A step between an effect and its record has a failpoint on both sides.
"""

import os
import signal
from typing import Final

_armed: Final[dict[str, int]] = {}


def arm_from(setting: str) -> None:
    """Arm from `name` or `name@visit`, comma separated; visits count from 1."""
    for word in filter(None, setting.split(",")):
        name, _, visit = word.partition("@")
        _armed[name] = int(visit or 1)


def failpoint(name: str) -> None:
    """Die here if armed."""
    if name not in _armed:
        return
    _armed[name] -= 1
    if _armed[name] == 0:
        os.kill(os.getpid(), signal.SIGKILL)
