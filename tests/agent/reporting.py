"""A child process that spools reports until there are `COUNT`, delivers them all, the first by itself, and exits 0.

`python -m tests.agent.reporting FOLDER URL CREDENTIAL COUNT`; `SLICEPLANE_FAILPOINTS` says where it dies.
"""

import os
import sys
from pathlib import Path

from node_agent.clock import NodeClock
from node_agent.reporter import Reporter
from node_agent.spool import Spool
from tasks.failpoints import arm_from
from tasks.reports import SliceStarting
from tasks.timetable import Timetable
from tests.agent.bearing import client_of
from tests.agent.eventually import eventually
from tests.agent.orders import apply


def main(folder: str, url: str, credential: str, count: str) -> None:
    arm_from(os.environ.get("SLICEPLANE_FAILPOINTS", ""))
    spool = Spool(Path(folder))
    reporter = Reporter(spool, NodeClock())
    timetable = Timetable()
    reporter.start(client_of(url, credential), timetable)
    # However quick the telling is: what happens at a second delivery always happens.
    for last in (1, int(count)):
        tell_up_to(last, spool, reporter)
        eventually(lambda: spool.waiting == 0, 30)
    # Who ends while a thread of his is at work may end by a fault.
    timetable.close()


def tell_up_to(last: int, spool: Spool, reporter: Reporter) -> None:
    order = apply()
    while spool._last < last:
        reporter.tell(SliceStarting(slot_id=order.slot_id, allocation_id=order.allocation_id), order)


if __name__ == "__main__":
    main(*sys.argv[1:])
