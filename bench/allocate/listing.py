"""`list`: how long a page of allocations takes, filtered by project and label, when there are many.

The ledger has 100,000 allocations of several projects, with labels and with all events of their lives: the oldest nine
tenths are released, the others are active. The projector fills the read models, and an API process serves pages of 50
over HTTP. Requests choose project and label in turn, and take the first page and the page after it.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final, NamedTuple

import httpx
import msgspec
import psycopg
from pydantic import SecretStr

from bench.access.served import admin_key, api
from bench.harness.measure import (
    Bench,
    Measurement,
    Progress,
    Round,
    TakeRound,
    percentile,
    pooled_median,
    show,
)
from bench.harness.servers import NO_REQUEST_LIMITS, bench_folder, migrated_postgres, sqlalchemy_url
from control_plane.decisions import allocation as life
from control_plane.decisions.allocation_states import Allocation, evolve
from control_plane.programs import SERVER, Program
from control_plane.settings import Settings
from control_plane.wiring import plane
from deploy.embedded.children import Child, installed_program
from deploy.embedded.lab_catalogue import GUEST, SMALL
from deploy.embedded.postgres import PostgresServer
from deploy.embedded.redis import running_redis
from events.allocations import (
    AllocationFact,
    AllocationPlaced,
    AllocationRequested,
    AllocationSpecified,
    PlacedSlot,
    SliceAddressObserved,
    SliceReady,
)
from events.entries import SpecifiedImage, SpecifiedSku
from events.envelope import Cause
from events.facts import Reason
from events.ledger.append import Change, append
from events.slots import SlotNetwork
from events.values import (
    AllocationId,
    ImageName,
    Ipv4Address,
    Ipv4Subnet,
    MacAddress,
    Position,
    ProjectId,
    SkuName,
    SlotId,
    SshPublicKey,
    allocation_of,
    new_uuid,
    stream_of_allocation,
)

ALLOCATIONS: Final = 100_000
ACTIVE: Final = ALLOCATIONS // 10
PROJECTS: Final = 20
TEAMS: Final = 5
PAGE: Final = 50
ROUNDS: Final = 5
REQUESTS: Final = 200
_WARM_UP: Final = 20
_PER_COMMIT: Final = 50
_PROGRESS_STEP: Final = ALLOCATIONS // 10
_PROJECTED_WITHIN: Final = 1800.0
"""Seconds in which the projector must have read the ledger."""
_POLL_SECONDS: Final = 0.2
_SLOT: Final = SlotId("node-0/0")
_BEGAN: Final = datetime(2026, 3, 1, 8, tzinfo=UTC)
_ADDRESS: Final = Ipv4Address("10.100.1.10")
_MAC: Final = MacAddress("02:00:5e:00:00:01")
SSH_KEY: Final = SshPublicKey(
    "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIBzPzYEEuKx0pWzqOq5eqUJYVtNHpb5lWPxYDBPzYxAP bench"
)


def _life() -> tuple[AllocationFact, ...]:
    """Return the facts of an allocation, from its request to its release, by the decisions of the control plane."""
    name = allocation_of(new_uuid())
    network = SlotNetwork(
        "default", _MAC, _ADDRESS, Ipv4Subnet("10.100.1.0/24"), Ipv4Address("10.100.1.1"), "br-slice"
    )
    sku, image = SkuName("lab.small"), ImageName("lab-guest")
    specified = AllocationSpecified(name, SpecifiedSku(sku, 1, SMALL), SpecifiedImage(image, 1, GUEST), None)
    facts: list[AllocationFact] = [
        AllocationRequested(name, ProjectId("p"), sku, "private-nat", image, (SSH_KEY,), 3600, 1, {}),
        specified,
        AllocationPlaced(name, (PlacedSlot(_SLOT, network),), _BEGAN + timedelta(minutes=2)),
    ]
    observed = SliceAddressObserved(name, _SLOT, _MAC, _ADDRESS, _ADDRESS, "bound")
    ready = SliceReady(name, _SLOT, _ADDRESS, 22, "SSH-2.0-dropbear_2022.83")
    released = Reason("released_by_caller", "the caller requested the release")
    facts += life.start_slice(_state(facts), _SLOT)
    facts += life.observe_address(_state(facts), observed)
    facts += life.slice_ready(_state(facts), ready, _BEGAN)
    facts += life.release(_state(facts), released)
    facts += life.slice_removed(_state(facts), _SLOT)
    return tuple(facts)


def _state(facts: Sequence[AllocationFact]) -> Allocation:
    state: Allocation | None = None
    for each in facts:
        state = evolve(state, each)
    assert state is not None
    return state


class RecordedAllocations(NamedTuple):
    """The last position of the ledger, and the oldest allocation that is still active."""

    last: Position
    oldest_active: AllocationId


async def record_allocations(dsn: str) -> RecordedAllocations:
    """Append the events of all allocations. A commit has allocations of one project."""
    whole = _life()
    active = whole[: 1 + next(n for n, each in enumerate(whole) if type(each).__name__ == "LeaseGranted")]
    last, oldest = Position(0), None
    async with await psycopg.AsyncConnection.connect(dsn) as conn:
        for first in range(0, ALLOCATIONS, _PER_COMMIT):
            project = ProjectId(f"project-{first // _PER_COMMIT % PROJECTS}")
            template = whole if first < ALLOCATIONS - ACTIVE else active
            changes = [_change(template, project, number) for number in range(first, first + _PER_COMMIT)]
            async with conn.transaction():
                [*_, newest] = await append(
                    conn, changes, Cause("key:bench", "bench", new_uuid(), _BEGAN, project)
                )
            last = newest.position
            request = changes[0].facts[0]
            if template is active and oldest is None and isinstance(request, AllocationRequested):
                oldest = request.allocation_id
            if first % _PROGRESS_STEP == 0:
                show(f"\r{first:,} of {ALLOCATIONS:,} allocations are recorded ")
    assert oldest is not None, "at least one recorded allocation must be active"
    return RecordedAllocations(last, oldest)


def _change(template: Sequence[AllocationFact], project: ProjectId, number: int) -> Change:
    name, replace = allocation_of(new_uuid()), msgspec.structs.replace
    labels = {"team": f"team-{number % TEAMS}", "run": f"run-{number}"}
    request, *others = template
    facts = (
        replace(request, allocation_id=name, project=project, labels=labels),
        *(replace(each, allocation_id=name) for each in others),
    )
    return Change(stream_of_allocation(name), 0, facts)


async def project(
    server: PostgresServer,
    redis_url: str,
    folder: Path,
    last: Position,
    tables: Sequence[str] = ("allocations",),
) -> None:
    """Run the projector until these read models have the events up to position `last`. Raises `TimeoutError`."""
    environment = {"SLICEPLANE_DATABASE_URL": sqlalchemy_url(server), "SLICEPLANE_REDIS_URL": redis_url}
    program = installed_program(SERVER, Program.PROJECTOR)
    child = Child("projector", tuple(program), folder / "projector.log", environment)
    child.start()
    try:
        async with asyncio.timeout(_PROJECTED_WITHIN):
            async with await psycopg.AsyncConnection.connect(server.app_dsn, autocommit=True) as conn:
                shown = -1
                while (known := await _listed_to(conn, tables)) < last:
                    if (percent := 100 * known // last) > shown:
                        shown = percent
                        show(f"\r{percent} % of the events are listed ")
                    await asyncio.sleep(_POLL_SECONDS)
    finally:
        child.stop()
    show("\n")


async def _listed_to(conn: psycopg.AsyncConnection, tables: Sequence[str]) -> int:
    query = "select min(position), count(*) from read.checkpoint where name = any(%s)"
    found = await (await conn.execute(query, [list(tables)])).fetchone()
    return int(found[0]) if found is not None and found[1] == len(tables) else 0


class _Reader:
    """Requests pages of allocations, each filtered by a project and a label."""

    def __init__(self, client: httpx.AsyncClient) -> None:
        self._client, self._sent = client, 0

    async def read(self) -> tuple[float, float]:
        """Return the milliseconds of a first page and of the page after it. Raises `RuntimeError` if a page is not
        complete.
        """
        self._sent += 1
        query = {
            "project": f"project-{self._sent % PROJECTS}",
            "label": f"team=team-{self._sent // PROJECTS % TEAMS}",
            "limit": str(PAGE),
        }
        first, cursor = await self._page(query)
        second, _ = await self._page({**query, "cursor": cursor})
        return first, second

    async def _page(self, query: dict[str, str]) -> tuple[float, str]:
        began = time.perf_counter()
        answer = (await self._client.get("/v1/allocations", params=query)).raise_for_status()
        took = (time.perf_counter() - began) * 1000
        page = answer.json()
        if len(page["items"]) != PAGE:
            raise RuntimeError(f"the page {query} has {len(page['items'])} allocations, not {PAGE}")
        return took, str(page["next_cursor"])


@asynccontextmanager
async def _running() -> AsyncIterator[TakeRound]:
    async with AsyncExitStack() as opened:
        folder = opened.enter_context(bench_folder())
        server = opened.enter_context(migrated_postgres(folder / "main"))
        redis = opened.enter_context(running_redis(folder / "redis"))
        settings = Settings(database_url=SecretStr(sqlalchemy_url(server)), redis_url=SecretStr(redis.url))
        async with plane(settings, pool=1) as made:
            key = await admin_key(made)
        recorded = await record_allocations(server.app_dsn)
        await project(server, redis.url, folder, recorded.last)
        own = folder / "api"
        own.mkdir()
        port = opened.enter_context(api(server, redis, own, NO_REQUEST_LIMITS))
        client = await opened.enter_async_context(
            httpx.AsyncClient(
                base_url=f"http://127.0.0.1:{port}", headers={"Authorization": f"Bearer {key}"}, timeout=60
            )
        )
        reader = _Reader(client)
        for _ in range(_WARM_UP):
            await reader.read()

        async def take(_number: int, progress: Progress) -> Round:
            found: dict[str, list[float]] = {"first": [], "next": []}
            for number in range(REQUESTS):
                first, following = await reader.read()
                found["first"].append(first)
                found["next"].append(following)
                progress((number + 1) / REQUESTS)
            return {**found, "page": [*found["first"], *found["next"]]}

        yield take


def _results(rounds: Sequence[Round]) -> tuple[Measurement, ...]:
    return (
        percentile("list.p95_ms", rounds, "page", "ms", 95),
        pooled_median("list.p50_ms", rounds, "page", "ms"),
        percentile("list.first_page_p95_ms", rounds, "first", "ms", 95),
    )


BENCH: Final = Bench(
    name="list",
    explanation="a page of 50 of 100,000 allocations, filtered by project and label, over HTTP",
    shape=f"list {PAGE} of {ALLOCATIONS}, {PROJECTS} projects, {TEAMS} teams, {REQUESTS} requests",
    rounds=ROUNDS,
    running=_running,
    results=_results,
)
