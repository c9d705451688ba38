"""After a start: what does each slot have to carry, and is it so?

The control plane is asked; what it wants goes through the same fence as every order. While it is away, the node goes
on from its own disk: that is how slices come back after a reboot without anybody's help. Only a node whose fence
files were never completed must wait, because it may have forgotten a newer token than the one it is offered.
"""

import structlog

from node_agent.accept import Acceptance
from node_agent.backoff import Backoff
from node_agent.client import ControlPlane, ControlPlaneAway, TurnedAway
from node_agent.fence import FenceFiles
from node_agent.halt import Halt

log = structlog.get_logger(__name__)


def resync(control_plane: ControlPlane, acceptance: Acceptance, files: FenceFiles, halt: Halt) -> None:
    """Returns when orders may be taken. What is due for slots is left to the caller. Raises `Halted`, `OSError`."""
    backoff = Backoff(cap=5.0)
    while not _asked(control_plane, acceptance, files):
        if files.complete:
            log.info("resync_from_disk")
            return
        halt.wait(backoff.next())


def _asked(control_plane: ControlPlane, acceptance: Acceptance, files: FenceFiles) -> bool:
    try:
        desired = control_plane.desired_state()
    except (ControlPlaneAway, TurnedAway) as away:
        log.warning("desired_state_unknown", reason=str(away))
        return False
    for order in desired.orders:
        acceptance.admit(order)
    files.mark_complete()
    log.info("resync_from_control_plane", orders=len(desired.orders))
    return True
