"""Benchmark `console`: the time that pages of the web console take with many allocations and a million events.

The ledger is that of the benchmark `list`: 100,000 allocations of several projects, with labels and with all events of
their lives. The fleet has 5,000 nodes with 40,000 slots, as rows without events (`bench.placement.fleet`). A logged-in
browser requests the pages one after the other over HTTP, without their scripts and styles. In each round, a second
control plane measures the echo of a serial console (`bench.allocate.console_echo`), and Chromium opens the timeline of
an allocation with 20,000 events (`bench.allocate.long_timeline`).
"""

import asyncio
import re
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Final

import httpx
from pydantic import SecretStr

from bench.access.served import admin_key, api
from bench.allocate.allocate import publish
from bench.allocate.console_echo import ECHOES, echoes
from bench.allocate.listing import ALLOCATIONS, PROJECTS, SSH_KEY, TEAMS, project, record_allocations
from bench.allocate.long_timeline import EVENTS, open_pages, record_long_history
from bench.harness.measure import (
    Bench,
    Measurement,
    Progress,
    Round,
    TakeRound,
    percentile,
    pooled_median,
)
from bench.harness.servers import NO_REQUEST_LIMITS, bench_folder, migrated_postgres, sqlalchemy_url
from bench.placement.fleet import IMAGE, PLAIN, SLOTS_PER_NODE, Fleet
from control_plane.programs import SERVER, Program
from control_plane.settings import Settings
from control_plane.wiring import plane
from deploy.embedded.children import Child, installed_program
from deploy.embedded.redis import running_redis

ROUNDS: Final = 5
REQUESTS: Final = 50
"""Number of times that each page is requested in a round."""
NODES: Final = 5000
FULL: Final = 0.7
"""Share of the slots that allocations hold, from 0 to 1."""
_TABLES: Final = ("allocations", "capacity", "project_events", "usage")
_PAGES: Final = (
    "/ui/",
    "/ui/allocations",
    "/ui/allocations?project=project-{project}&label=team%3Dteam-{team}",
    "/ui/allocations/new",
    "/ui/allocations/{allocation}",
    "/ui/usage/entries?project=project-{project}",
    "/ui/projects",
    "/ui/nodes",
    "/ui/nodes?cursor={node}",
    "/ui/nodes?state=unreachable",
    "/ui/nodes?state=enrolled&drift=false&cordoned=false&cursor={node}",
    "/ui/nodes/{node}",
    "/ui/nodes/{node}/slots/{index}",
)
_PREVIEW: Final = "/ui/allocations/new/preview"
"""Path that the form of a new allocation requests while a user fills it in."""
_HISTORY: Final = (
    "/ui/events",
    "/ui/events?project=project-{project}&type=allocation.lease_granted",
    "/ui/events?actor=key:bench",
    "/ui/events/{position}",
    "/ui/history?kind=allocation&name={allocation}",
    "/ui/history?kind=allocation&name={allocation}&at=position:{position}",
)
_HIDDEN: Final = re.compile(r'name="csrf" value="([^"]+)"')


class _Browser:
    """A logged-in browser without scripts."""

    def __init__(self, client: httpx.AsyncClient) -> None:
        self._client, self._sent = client, 0
        self._allocations: list[str] = []
        self._position = 0
        self._form: dict[str, str] = {}

    async def log_in(self, key: str) -> None:
        """Log in, and read the ids of allocations and the newest position, which the paths of pages contain. Raises
        `RuntimeError` if the login fails.
        """
        form = await self._client.get("/ui/login")
        found = _HIDDEN.search(form.text)
        if found is None:
            raise RuntimeError("the login page has no form")
        answer = await self._client.post("/ui/login", data={"csrf": found[1], "key": key})
        if answer.status_code != httpx.codes.SEE_OTHER:
            raise RuntimeError(f"the login failed with status {answer.status_code}")
        self._form = await self._form_of_creation()
        headers = {"Authorization": f"Bearer {key}"}
        listed = await self._client.get("/v1/allocations", params={"limit": 200}, headers=headers)
        self._allocations = [each["id"] for each in listed.raise_for_status().json()["items"]]
        newest = await self._client.get("/v1/events", params={"order": "desc", "limit": 1}, headers=headers)
        self._position = newest.raise_for_status().json()["items"][0]["position"]

    async def _form_of_creation(self) -> dict[str, str]:
        page = await self._client.get("/ui/allocations/new")
        found = _HIDDEN.search(page.text)
        if found is None:
            raise RuntimeError("the page of a new allocation has no form")
        fields = {
            "sku": PLAIN,
            "image": IMAGE,
            "network_mode": "private-nat",
            "slot_count": "1",
            "hours": "1",
        }
        return {**fields, "csrf": found[1], "ssh_keys": SSH_KEY}

    async def preview(self) -> float:
        """Request the preview of a new allocation, and return the response time in milliseconds. Raises `RuntimeError`
        if the preview does not name a node.
        """
        began = time.perf_counter()
        answer = await self._client.post(_PREVIEW, data=self._form)
        took = (time.perf_counter() - began) * 1000
        if answer.status_code != httpx.codes.OK or "/ui/nodes/n0" not in answer.text:
            raise RuntimeError(f"the preview has status {answer.status_code}: {answer.text[:1000]}")
        return took

    async def open(self, page: str) -> float:
        """Request a page, and return the response time in milliseconds. Raises `RuntimeError` if the status of the
        response is not 200.

        `page` is the path of the page; its placeholders get different ids with each request.
        """
        self._sent += 1
        path = page.format(
            node=f"n{1 + self._sent % (NODES - 1):06d}",
            index=self._sent % SLOTS_PER_NODE,
            project=self._sent % PROJECTS,
            team=self._sent % TEAMS,
            allocation=self._allocations[self._sent % len(self._allocations)],
            position=self._position - self._sent,
        )
        began = time.perf_counter()
        answer = await self._client.get(path)
        took = (time.perf_counter() - began) * 1000
        if answer.status_code != httpx.codes.OK:
            raise RuntimeError(f"{path} was answered with status {answer.status_code}")
        return took


@asynccontextmanager
async def _running() -> AsyncIterator[TakeRound]:
    async with AsyncExitStack() as opened:
        folder = opened.enter_context(bench_folder())
        server = opened.enter_context(migrated_postgres(folder / "main"))
        redis = opened.enter_context(running_redis(folder / "redis"))
        settings = Settings(database_url=SecretStr(sqlalchemy_url(server)), redis_url=SecretStr(redis.url))
        async with plane(settings, pool=1) as made:
            key = await admin_key(made)
            await publish(made)
            recorded = await record_allocations(server.app_dsn)
            last = await record_long_history(made.engine, server.app_dsn, recorded.oldest_active)
        Fleet(NODES, FULL).write(server.admin_dsn)
        await project(server, redis.url, folder, last, _TABLES)
        # Pages that need the newest events wait for the projector.
        environment = {"SLICEPLANE_DATABASE_URL": sqlalchemy_url(server), "SLICEPLANE_REDIS_URL": redis.url}
        program = installed_program(SERVER, Program.PROJECTOR)
        projector = Child("projector", tuple(program), folder / "projector.log", environment)
        projector.start()
        opened.callback(projector.stop)
        own = folder / "api"
        own.mkdir()
        port = opened.enter_context(api(server, redis, own, NO_REQUEST_LIMITS))
        address = f"http://127.0.0.1:{port}"
        client = await opened.enter_async_context(httpx.AsyncClient(base_url=address, timeout=60))
        browser = _Browser(client)
        await browser.log_in(key)
        for each in (*_PAGES, *_HISTORY):
            await browser.open(each)
        await browser.preview()

        async def take(_number: int, progress: Progress) -> Round:
            # Measure the echo before the pages: the programs of the second control plane would slow the pages down.
            found: dict[str, list[float]] = {"page": [], "history": [], "echo": await echoes()}
            for number in range(REQUESTS):
                for kind, pages in (("page", _PAGES), ("history", _HISTORY)):
                    found[kind] += [await browser.open(each) for each in pages]
                found["page"].append(await browser.preview())
                progress((number + 1) / REQUESTS)
            opened_pages = await asyncio.to_thread(open_pages, address, key, recorded.oldest_active)
            return {**found, **opened_pages._asdict()}

        yield take


def _results(rounds: Sequence[Round]) -> tuple[Measurement, ...]:
    return (
        percentile("console.page_p95_ms", rounds, "page", "ms", 95),
        pooled_median("console.page_p50_ms", rounds, "page", "ms"),
        percentile("console.history_p95_ms", rounds, "history", "ms", 95),
        percentile("console.timeline_ms", rounds, "timeline", "ms", 95),
        percentile("console.long_allocation_ms", rounds, "allocation", "ms", 95),
        percentile("console.echo_ms", rounds, "echo", "ms", 95),
        pooled_median("console.echo_p50_ms", rounds, "echo", "ms"),
    )


BENCH: Final = Bench(
    name="console",
    explanation="pages of the web console with 5,000 nodes, 100,000 allocations and 1 million events, a timeline in Chromium, and the echo of a serial console",
    shape=f"console {NODES} nodes, {ALLOCATIONS}, {PROJECTS} projects, {TEAMS} teams, {REQUESTS} requests of each page, a timeline of {EVENTS}, {ECHOES} echoes",
    rounds=ROUNDS,
    running=_running,
    results=_results,
)
