"""The history of one allocation with 20,000 events, opened in Chromium as an operator opens it.

The slice of the allocation stops by itself and becomes ready again, thousands of times. Chromium opens the page of the
allocation, its whole timeline, and the timeline with every event shown singly. A page counts as usable when it is
loaded with its scripts, the newest event is visible, and the link to the next page can be followed.
"""

import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Final, NamedTuple

import psycopg
from playwright.sync_api import Browser, Page
from sqlalchemy.ext.asyncio import AsyncEngine

from control_plane.decisions import allocation as life
from control_plane.decisions.allocation_states import Active, evolve, slot_ids
from control_plane.histories import allocation_history
from deploy.screenshots.chromium import running_chromium
from events.allocations import AllocationFact, SliceInterrupted, SliceReady
from events.envelope import Cause
from events.facts import Reason
from events.ledger.append import Change, append
from events.values import AllocationId, Ipv4Address, Position, SlotId, correlation_of, stream_of_allocation

EVENTS: Final = 20_000
OPENINGS: Final = 5
"""Number of times that a round opens each page."""
_PER_COMMIT: Final = 1000
_ALLOCATION: Final = "/ui/allocations/{allocation}"
_TIMELINES: Final = (
    "/ui/allocations/{allocation}/timeline",
    "/ui/allocations/{allocation}/timeline?level=routine",
)
_FURTHER: Final = {"": "The whole timeline", "/timeline": "Next page"}
"""Name of the link to older events: on the page of the allocation, and on its timeline."""
_DEADLINE: Final = timedelta(minutes=10)
_OUTAGE: Final = Reason("slice_stopped", "the virtual machine of the slice stopped")


async def record_long_history(engine: AsyncEngine, dsn: str, name: AllocationId) -> Position:
    """Append events to an active allocation with one slot until it has `EVENTS`. Return the last position."""
    stream, last = stream_of_allocation(name), Position(0)
    async with engine.connect() as reading:
        recorded = await allocation_history(reading, name)
    async with await psycopg.AsyncConnection.connect(dsn) as conn:
        state = None
        for event in recorded:
            state = evolve(state, event.fact)
        assert isinstance(state, Active), "a long history can be recorded only for an active allocation"
        [slot], project = slot_ids(state.slots), state.request.project
        version, cycle = len(recorded), _cycle(name, slot)
        while version < EVENTS:
            facts: list[AllocationFact] = []
            while len(facts) < _PER_COMMIT:
                new = next(cycle)
                made = (
                    life.interrupt_slice(state, new)
                    if isinstance(new, SliceInterrupted)
                    else life.slice_ready(state, new, datetime.now(UTC))
                )
                for each in made:
                    state = evolve(state, each)
                facts += made
            cause = Cause("node:bench", "report", correlation_of(name), datetime.now(UTC), project)
            async with conn.transaction():
                [*_, end] = await append(conn, [Change(stream, version, tuple(facts))], cause)
            version, last = version + len(facts), end.position
    return last


def _cycle(name: AllocationId, slot: SlotId) -> Iterator[SliceInterrupted | SliceReady]:
    while True:
        yield SliceInterrupted(name, slot, _OUTAGE, datetime.now(UTC) + _DEADLINE)
        yield SliceReady(name, slot, Ipv4Address("10.100.1.10"), 22, "SSH-2.0-dropbear_2022.83")


class Opened(NamedTuple):
    """Milliseconds until pages were usable in Chromium."""

    timeline: list[float]
    allocation: list[float]


def open_pages(address: str, key: str, allocation: AllocationId) -> Opened:
    """Open the timelines of an allocation, and its page, which shows its state after all events. Raises
    `ChromiumNotFound`.
    """
    with running_chromium() as browser:
        page = _logged_in(browser, address, key)
        own, *timelines = [
            f"{address}{each}".format(allocation=allocation) for each in (_ALLOCATION, *_TIMELINES)
        ]
        for each in (own, *timelines):
            _open(page, each)
        opened = Opened([], [])
        for _ in range(OPENINGS):
            opened.timeline.extend(_open(page, each) for each in timelines)
            opened.allocation.append(_open(page, own))
        return opened


def _logged_in(browser: Browser, address: str, key: str) -> Page:
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    page.goto(f"{address}/ui/login")
    page.get_by_label("API key or token").fill(key)
    page.get_by_role("button", name="Log in", exact=True).click()
    page.get_by_role("heading", name="Overview").wait_for()
    return page


def _open(page: Page, url: str) -> float:
    began = time.perf_counter()
    page.goto(url, wait_until="load")
    page.locator("table.events tbody tr").first.wait_for()
    page.get_by_role("link", name=_FURTHER[url.partition("/timeline")[1]]).click(trial=True)
    return (time.perf_counter() - began) * 1000
