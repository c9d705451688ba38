"""`./dev up`: everything on one machine, a first slice on it, and an orderly end whatever happens.

Order: nodes without agents, control plane, enrolments, agents, story. The end goes the other way, also after
Ctrl-C at any moment; a second Ctrl-C does not cut the clean-up short. What is kept lies in the state folder, and
the next `up` goes on from there.
"""

import contextlib
import shlex
import signal
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import FrameType
from typing import Any

import structlog

from deploy.embedded.client import Api
from deploy.embedded.layout import Hold, Layout
from deploy.embedded.leaks import LeakCheck
from deploy.embedded.nodes import LabNodes, Nodes, SimulatedNodes, why_not_real
from deploy.embedded.screen import Screen
from deploy.embedded.stack import Stack
from deploy.embedded.story import ONCE_LABEL, Story
from deploy.setup.interrupts import raise_interrupts


def up(layout: Layout, screen: Screen, *, once: bool, simulated: bool) -> int:
    """Bring everything up, show it, and stay (or, `once`, take it down again). Returns the exit code.

    Raises what a part that does not come up raises; everything that was started is stopped by then.
    """
    layout.claim()
    # Nothing is made outside of the state folder before it is ours: whoever holds it may be removing that.
    with Hold(layout), contextlib.ExitStack() as opened:
        opened.callback(
            screen.say,
            "everything is stopped; the state is kept in " + str(layout.state),
        )
        _unwind_through(opened, layout.remove_run)
        # Until here there was nothing to undo.
        raise_interrupts()
        signal.signal(signal.SIGTERM, _end)
        with _announced_stop(screen):
            return _run(layout, screen, opened, once=once, simulated=simulated)


def _run(layout: Layout, screen: Screen, opened: contextlib.ExitStack, *, once: bool, simulated: bool) -> int:
    layout.ensure()
    _log_to(layout.logs / "up.log")
    nodes = _choose_nodes(layout, screen, simulated=simulated)
    _unwind_through(opened, nodes.stop)
    nodes.start()
    stack = Stack(
        layout,
        nodes.management_addresses,
        screen.say,
        namespaces=nodes.namespaces,
        simulated_nodes=nodes.simulated,
    )
    _unwind_through(opened, stack.stop)
    screen.say("starting the control plane: PostgreSQL, Redis, API, dispatcher, projector")
    stack.start()
    story = _story(layout, stack, nodes, screen)
    story.admit_nodes()
    before = story.last_seen()
    nodes.start_agents(stack.node_api_url)
    story.await_nodes(before)
    return _run_once(story, stack) if once else _stay(story, stack)


@contextlib.contextmanager
def _announced_stop(screen: Screen) -> Iterator[None]:
    """Print at once that an interrupt is being obeyed: the clean-up takes seconds."""
    try:
        yield
    except KeyboardInterrupt:
        screen.say("stopping ...")
        raise


def _unwind_through(opened: contextlib.ExitStack, stop: Any) -> None:
    """Stop a part at the end, and from then on let no Ctrl-C interrupt the stopping."""
    opened.callback(stop)
    opened.callback(_ignore_interrupts)


def _choose_nodes(layout: Layout, screen: Screen, *, simulated: bool) -> Nodes:
    """Real nodes where the machine can carry them. Raises `OtherNodes` for a state folder of the other kind."""
    why = "asked for" if simulated else why_not_real()
    layout.remember_nodes("real" if why is None else "simulated")
    if why is None:
        return LabNodes(layout, screen.say)
    screen.say(f"simulated nodes ({why}): the same agent over hosts in memory")
    return SimulatedNodes(layout, screen.say)


def _story(layout: Layout, stack: Stack, nodes: Nodes, screen: Screen) -> Story:
    def tend() -> None:
        stack.tend()
        nodes.tend()

    return Story(
        layout,
        Api(stack.api_url, stack.ensure_key(), stack.trusted),
        nodes,
        screen,
        tend,
    )


def _run_once(story: Story, stack: Stack) -> int:
    story.release_leftovers()
    story.resume()
    check = LeakCheck(story.layout, story.nodes, stack.redis_url, story.screen)
    check.snapshot()
    allocation = story.create(ONCE_LABEL)
    story.use(allocation)
    story.release(allocation["id"])
    if not check.compare():
        story.screen.bad("the nodes are not clean")
        return 1
    story.screen.good("a slice was made, used and released, and nothing of it is left")
    for other in story.others():
        story.screen.note(
            f"another slice is {other['state']} here: {other['id']}, labels {_words(other['labels'])}"
        )
    return 0


def _words(labels: Mapping[str, str]) -> str:
    return ", ".join(f"{name}={value}" for name, value in labels.items()) or "none"


def _stay(story: Story, stack: Stack) -> int:
    story.release_leftovers()
    active = story.resume() or [story.create()]
    for allocation in active:
        story.use(allocation)
    _explain(story, stack, active)
    while True:
        story.tend()
        time.sleep(0.5)


def _explain(story: Story, stack: Stack, active: list[dict[str, Any]]) -> None:
    screen = story.screen
    screen.good(f"active: {', '.join(each['id'] for each in active)}")
    screen.note("Ctrl-C stops everything; the state is kept.")
    screen.note(f"API   {stack.api_url}/docs   (key and CA in {story.layout.client_file})")
    screen.note(f"CLI   export SLICEPLANE_CONFIG={shlex.quote(str(story.layout.client_file))}")
    screen.note("try   .venv/bin/sliceplane allocations list")
    screen.note(f"logs  {story.layout.logs}")
    if not story.nodes.simulated:
        for each in active:
            screen.note(f"ssh   .venv/bin/sliceplane ssh {each['id']}")


def _log_to(path: Path) -> None:
    """What the lab logs is for whoever looks for a fault, not for the screen."""
    structlog.configure(
        processors=[
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.JSONRenderer(),
        ],
        logger_factory=structlog.WriteLoggerFactory(file=path.open("a")),
    )


def _end(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _ignore_interrupts() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
