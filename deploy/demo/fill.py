"""Demo data: weeks of history of a simulated fleet, in an empty database (`./dev up --demo`).

The programs of the control plane do not run meanwhile. Afterwards, the projector fills the read models from the ledger
as after any other outage.
"""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from random import Random
from typing import Final

import msgspec
from sqlalchemy.engine import URL

from control_plane.database import engine_of
from control_plane.handle import Handle
from deploy.demo.administration import (
    FAILING,
    fail_task,
    let_task_expire,
    limit_budget,
    request_verification,
    verify,
    wait_for_capacity,
)
from deploy.demo.clock import DemoClock, ledger_clock_replaced
from deploy.demo.plan import (
    CLIMATE,
    PROJECTS,
    SPEECH,
    VISION,
    DemoNode,
    Sizes,
    acceptance_test,
    nodes,
    planned_allocations,
    training_run,
)
from deploy.demo.recorder import Recorder

SEED: Final = 1
_REPAIRED: Final = (
    ("port.absent", "port 1000 of br-slice on slice0", "no port"),
    ("machine.absent", "a running virtual machine", "no virtual machine"),
)
_REPAIRS_PER_DAY: Final = 3
_ADDED_LATER: Final = {6: 0.95, 36: 0.93}
"""Nodes that are added late, by their places in the fleet: when, from 0 to 1. They fail their tests, so that they are
excluded from placement at the end of the data.
"""
_TESTED_AFTER: Final = (5, 5.2, 31, 31.2)
"""Minutes after the addition of a node at which it is tested. Two tests at a time use different slots: three failures
in one slot exclude the slot, not its node.
"""
_WAITING: Final = (SPEECH, VISION)
_PRIORITIES: Final = (0, 10)
"""Projects and priorities of the requests that wait for capacity."""
_CONNECTIONS: Final = 3
"""One for commands, and two more for a verification, which compares tables while it replays the ledger."""
ShowProgress = Callable[[float, datetime], None]
"""Function that gets the finished share of the work, from 0 to 1, and the time up to which data are recorded."""


def fill(
    admin_dsn: str,
    app: URL,
    sizes: Sizes,
    show: ShowProgress,
    *,
    seed: int = SEED,
    until: datetime | None = None,
) -> list[DemoNode]:
    """Record demo data that end at `until`, by default now, and return the nodes. Equal seeds give equal data.

    `admin_dsn` is for the superuser of the database, and `app` for the role of the application. Raises
    `LedgerNotEmpty`. An interrupt (`KeyboardInterrupt`) ends it after the present step.
    """
    halted = threading.Event()
    # In a thread of its own: an interrupt in the middle of a database command would leave the connection unusable.
    with ledger_clock_replaced(admin_dsn), ThreadPoolExecutor(1) as thread:
        filling = thread.submit(
            lambda: asyncio.run(_fill(app, (sizes, seed, until or datetime.now(UTC)), show, halted))
        )
        try:
            return filling.result()
        except KeyboardInterrupt:
            halted.set()
            raise


async def _fill(
    app: URL, extent: "tuple[Sizes, int, datetime]", show: ShowProgress, halted: threading.Event
) -> list[DemoNode]:
    sizes, seed, until = extent
    began = until - timedelta(days=sizes.days)
    clock, fleet = DemoClock(began), nodes(sizes)
    engine = engine_of(app.render_as_string(hide_password=False), _CONNECTIONS)
    try:
        recorder = Recorder(Handle(engine, _wake_no_follower, clock), clock, Random(seed), until)  # noqa: S311 (not for cryptography)
        _schedule(recorder, fleet, began, sizes, seed)
        await recorder.run(lambda moment: show((moment - began) / (until - began), moment), halted.is_set)
        if not halted.is_set():
            await recorder.store_orders()
            await request_verification(recorder)
    finally:
        await engine.dispose()
    return fleet


def _schedule(recorder: Recorder, fleet: list[DemoNode], began: datetime, sizes: Sizes, seed: int) -> None:
    whole = timedelta(days=sizes.days)
    recorder.at(began, recorder.found)
    for number, node in enumerate(fleet):
        added_at = whole * _ADDED_LATER[number] if number in _ADDED_LATER else timedelta(seconds=1 + number)
        recorder.at(began + added_at, partial(recorder.add, node))
    for planned in planned_allocations(sizes, seed):
        recorder.at(began + planned.at, partial(recorder.request, planned))
    recorder.at(began + whole * 0.5, recorder.raise_price)
    recorder.at(began + whole * 0.6, partial(recorder.reserve, VISION, 4))
    recorder.at(began + whole * 0.65, partial(recorder.reserve, CLIMATE, max(2, sizes.nodes // 16)))
    _schedule_incidents(recorder, fleet, began, whole)
    _schedule_failures(recorder, fleet, began, whole)
    _schedule_administration(recorder, fleet, began, whole)


def _schedule_incidents(recorder: Recorder, fleet: list[DemoNode], began: datetime, whole: timedelta) -> None:
    random = recorder.random
    for _ in range(round(whole / timedelta(days=1) * _REPAIRS_PER_DAY)):
        drift, node = random.choice(_REPAIRED), random.choice(fleet)
        recorder.at(began + whole * random.uniform(0.1, 1), partial(recorder.repair_drift, node, *drift))
    updated, cordoned = fleet[0].name, fleet[min(1, len(fleet) - 1)].name
    recorder.at(began + whole * 0.3, partial(recorder.cordon, updated, "update of its firmware"))
    recorder.at(
        began + whole * 0.32, partial(recorder.uncordon, updated, "the firmware of the node was updated")
    )
    recorder.at(began + whole * 0.97, partial(recorder.cordon, cordoned, "its fan is loud"))
    recorder.at(began + whole * 0.45, partial(recorder.reprovision, "its address was published"))
    recorder.at(began + whole * 0.7, partial(recorder.retire, "its disk is slow"))
    for number, node in enumerate(each for each in fleet if not each.attended):
        drift = ("uplink.unresponsive", "the gateway of the uplink responds", "no response for 30 s")
        recorder.at(began + whole * (0.98 - number / 100), partial(recorder.open_drift, node, *drift))


def _schedule_failures(recorder: Recorder, fleet: list[DemoNode], began: datetime, whole: timedelta) -> None:
    """Schedule a node that was excluded from placement and readmitted, and nodes that are excluded at the end."""
    repaired = fleet[min(2, len(fleet) - 1)].name
    recorder.at(began + whole * 0.4, partial(recorder.break_down, repaired))
    recorder.at(began + whole * 0.55, partial(recorder.readmit, repaired, "its memory was replaced"))
    for place, share in _ADDED_LATER.items():
        for node in fleet[place : place + 1]:
            recorder.at(began, partial(recorder.break_down, node.name))
            for minutes in _TESTED_AFTER:
                test = acceptance_test(whole * share + timedelta(minutes=minutes), node.name)
                recorder.at(began + test.at, partial(recorder.request, test))


def _schedule_administration(
    recorder: Recorder, fleet: list[DemoNode], began: datetime, whole: timedelta
) -> None:
    recent = min(whole, timedelta(days=3))
    for number, failing in enumerate(FAILING):
        node = fleet[(number + 3) % len(fleet)].name
        recorder.at(recorder.until - recent * (0.8 - number / 5), partial(fail_task, recorder, failing, node))
    unreachable = [each.name for each in fleet if not each.attended]
    recorder.at(recorder.until - recent * 0.04, partial(let_task_expire, recorder, unreachable[0]))
    recorder.at(began + whole * 0.04, partial(verify, recorder))
    for number, priority in enumerate(_PRIORITIES):
        run = training_run(recorder.random, whole * (0.97 + number / 100), timedelta(days=2))
        run = replace(run, project=_WAITING[number])
        recorder.at(began + run.at, partial(wait_for_capacity, recorder, run, priority))
    # Late, because each request in a project with a budget reads the events since the last update of the usage, and the
    # usage is not updated while the data are recorded.
    projects = {each.name: each for each in PROJECTS}
    vision = msgspec.structs.replace(projects[VISION].limits, budget_per_month="20000")
    recorder.at(began + whole * 0.98, partial(recorder.limit, VISION, vision))
    recorder.at(began + whole * 0.99, partial(limit_budget, recorder, projects[CLIMATE]))


async def _wake_no_follower() -> None:
    """Do nothing instead of waking followers of the ledger: the control plane's programs are not running yet."""
