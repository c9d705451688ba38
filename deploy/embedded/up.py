"""`./dev up`: start everything on one machine, create a first slice, and stop in order in every case.

Order: nodes without agents, control plane, enrolments, agents, demonstration. Stopping uses the reverse order, also
after Ctrl-C at any moment; a second Ctrl-C does not interrupt the clean-up. The state folder is kept, and the next `up`
continues from it.
"""

import contextlib
import os
import shlex
import signal
import time
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, Final

import structlog

from deploy.demo.fleet import HEARTBEAT_SECONDS, DemoFleet
from deploy.demo.plan import Sizes
from deploy.embedded.client import Api
from deploy.embedded.demonstration import ONCE_LABEL, Demonstration
from deploy.embedded.layout import Layout, StateFolderLock
from deploy.embedded.leaks import LeakCheck
from deploy.embedded.nodes import LabNodes, Nodes, SimulatedNodes, reason_lab_nodes_cannot_run
from deploy.embedded.screen import Screen
from deploy.embedded.stack import Stack
from deploy.setup.interrupts import raise_interrupts

API_WORKERS: Final = 2
"""Number of processes that answer requests, if the machine has as many processors."""


def up(layout: Layout, screen: Screen, *, once: bool, simulated: bool, demo: Sizes | None = None) -> int:
    """Start Sliceplane, run the demonstration, and keep running (or, with `once`, stop again). Return the exit code.

    With `demo`, demo data of this size are recorded first, unless the state folder has demo data.

    Raises the exception of a part that does not start, after stopping everything that was started.
    """
    layout.claim()
    # Create nothing outside the state folder before this process holds its lock: another process may be removing it.
    with StateFolderLock(layout), contextlib.ExitStack() as opened:
        opened.callback(
            screen.show,
            f"all programs are stopped; the state is kept in {layout.state}",
        )
        _stop_at_end(opened, layout.remove_run)
        # Until here there is nothing to undo.
        raise_interrupts()
        signal.signal(signal.SIGTERM, _raise_interrupt)
        with _announced_stop(screen):
            return _run(layout, screen, opened, once=once, simulated=simulated, demo=demo)


def _run(
    layout: Layout,
    screen: Screen,
    opened: contextlib.ExitStack,
    *,
    once: bool,
    simulated: bool,
    demo: Sizes | None,
) -> int:
    layout.ensure()
    fleet = DemoFleet(layout, screen, again=demo is not None)
    _log_to(layout.logs / "up.log")
    nodes = _choose_nodes(layout, screen, simulated=simulated)
    _stop_at_end(opened, nodes.stop)
    nodes.start()
    stack = Stack(
        layout,
        nodes.management_addresses,
        screen.show,
        namespaces=nodes.namespaces,
        simulated_nodes=nodes.simulated,
        api_workers=min(API_WORKERS, os.cpu_count() or 1),
        prepare=None if demo is None else partial(fleet.record, sizes=demo),
        further={"SLICEPLANE_HEARTBEAT_SECONDS": str(HEARTBEAT_SECONDS)} if demo or fleet.exists else {},
    )
    _stop_at_end(opened, stack.stop)
    screen.show("starting the control plane: PostgreSQL, Redis, API, dispatcher, projector, sealer")
    stack.start()
    demonstration = _demonstration(layout, stack, nodes, screen, fleet)
    demonstration.admit_nodes()
    before = demonstration.last_seen()
    nodes.start_agents(stack.node_api_url)
    demonstration.await_nodes(before)
    _stop_at_end(opened, fleet.stop)
    fleet.start_agents(demonstration.api, stack.node_api_url, layout.ca_file)
    return _run_once(demonstration, stack) if once else _stay(demonstration, stack)


@contextlib.contextmanager
def _announced_stop(screen: Screen) -> Iterator[None]:
    """Print a line as soon as Ctrl-C arrives, because the clean-up takes seconds."""
    try:
        yield
    except KeyboardInterrupt:
        screen.show("stopping ...")
        raise


def _stop_at_end(opened: contextlib.ExitStack, stop: Any) -> None:
    """Register `stop` as a clean-up function. Once the clean-up has begun, Ctrl-C no longer interrupts it."""
    opened.callback(stop)
    opened.callback(_ignore_interrupts)


def _choose_nodes(layout: Layout, screen: Screen, *, simulated: bool) -> Nodes:
    """Return real nodes if this machine supports them, else simulated ones.

    Raises `NodeKindMismatch` if the state folder belongs to nodes of the other kind.
    """
    reason = "requested with --simulated" if simulated else reason_lab_nodes_cannot_run()
    layout.record_node_kind("real" if reason is None else "simulated")
    if reason is None:
        return LabNodes(layout, screen.show)
    screen.show(f"simulated nodes ({reason}): the real agent runs on hosts that exist only in memory")
    return SimulatedNodes(layout, screen.show)


def _demonstration(
    layout: Layout, stack: Stack, nodes: Nodes, screen: Screen, fleet: DemoFleet
) -> Demonstration:
    def supervise() -> None:
        stack.supervise()
        nodes.supervise()
        fleet.supervise(screen.show)

    return Demonstration(
        layout,
        Api(stack.api_url, stack.ensure_key(), stack.trusted),
        nodes,
        screen,
        supervise,
    )


def _run_once(demonstration: Demonstration, stack: Stack) -> int:
    demonstration.release_leftovers()
    demonstration.resume()
    check = LeakCheck(demonstration.layout, demonstration.nodes, stack.redis_url, demonstration.screen)
    check.snapshot()
    allocation = demonstration.create(ONCE_LABEL)
    demonstration.use(allocation)
    demonstration.release(allocation["id"])
    if not check.compare():
        demonstration.screen.error("the nodes are not clean: the leak check above lists the differences")
        return 1
    demonstration.screen.success("a slice was created, used and released, and no object of it is left")
    for other in demonstration.others():
        demonstration.screen.detail(
            f"another allocation is {other['state']}: {other['id']}, labels {_label_text(other['labels'])}"
        )
    return 0


def _label_text(labels: Mapping[str, str]) -> str:
    return ", ".join(f"{name}={value}" for name, value in labels.items()) or "none"


def _stay(demonstration: Demonstration, stack: Stack) -> int:
    demonstration.release_leftovers()
    active = demonstration.resume() or [demonstration.create()]
    for allocation in active:
        demonstration.use(allocation)
    _explain(demonstration, stack, active)
    while True:
        demonstration.supervise()
        time.sleep(0.5)


def _explain(demonstration: Demonstration, stack: Stack, active: list[dict[str, Any]]) -> None:
    screen = demonstration.screen
    screen.success(f"active slices: {', '.join(each['id'] for each in active)}")
    screen.detail("Ctrl-C stops everything; the state is kept.")
    screen.detail(
        f"console  {stack.api_url}/ui   (log in with api_key in {demonstration.layout.client_file})"
    )
    screen.detail(f"API      {stack.api_url}/docs   (the same file has the key and the CA)")
    screen.detail(f"CLI      export SLICEPLANE_CONFIG={shlex.quote(str(demonstration.layout.client_file))}")
    screen.detail("try      .venv/bin/sliceplane allocations list")
    screen.detail(f"logs     {demonstration.layout.logs}")
    if not demonstration.nodes.simulated:
        for each in active:
            screen.detail(f"ssh      .venv/bin/sliceplane ssh {each['id']}")


def _log_to(path: Path) -> None:
    """Write the log lines of the lab nodes to a file for troubleshooting instead of the screen."""
    structlog.configure(
        processors=[
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.JSONRenderer(),
        ],
        logger_factory=structlog.WriteLoggerFactory(file=path.open("a")),
    )


def _raise_interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _ignore_interrupts() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
