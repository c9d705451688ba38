"""Child process that spools `COUNT` reports, delivers the first in its own batch and then the rest, and exits with 0.

Arguments: FOLDER URL CREDENTIAL COUNT. The variable `SLICEPLANE_FAILPOINTS` names the failpoint at which it kills
itself. It runs as a copy (`tests.servers.program_copies`), because a new Python process would need longer for its
imports than for its work.
"""

import os
import sys
from pathlib import Path

from node_agent.runtime.clock import NodeClock
from node_agent.runtime.timetable import Timetable
from node_agent.transport.reporter import Reporter
from node_agent.transport.spool import Spool
from tasks.failpoints import arm_from
from tasks.reports import SliceStarting
from tests.agent.credential_client import client_of
from tests.agent.eventually import eventually
from tests.agent.orders import apply


def main(folder: str, url: str, credential: str, count: str) -> None:
    arm_from(os.environ.get("SLICEPLANE_FAILPOINTS", ""))
    spool = Spool(Path(folder))
    reporter = Reporter(spool, NodeClock())
    timetable = Timetable()
    reporter.start(client_of(url, credential), timetable)
    # Two deliveries, however fast the first is: some failpoints are reached only at the second one.
    for last in (1, int(count)):
        spool_up_to(last, spool, reporter)
        eventually(lambda: spool.waiting == 0, 30)
    # A process that exits while one of its threads still works may crash.
    timetable.close()


def spool_up_to(last: int, spool: Spool, reporter: Reporter) -> None:
    order = apply()
    while spool._last < last:
        reporter.report(SliceStarting(slot_id=order.slot_id, allocation_id=order.allocation_id), order)


def program() -> None:
    """Spool and deliver reports, with the arguments of the command line."""
    main(*sys.argv[1:])
