"""`allocate`: how many allocations per second the API accepts, and what a creation costs.

The control plane runs as in a deployment: Postgres with fsync, Redis, API processes and the projector. Callers create
allocations over HTTP with API keys, idempotency keys and limits of their projects, in an open loop of `RATE` requests
per second: once all with one project, and once with many. A further process releases allocations, so that the fleet of
1,000 nodes stays filled to about 70 % (`bench.allocate.releases`). Then the same callers create as fast as they can,
and bare appends of the same size run on the same database for comparison. The growth of the cost with the fleet is
measured by commands without HTTP, in databases of 800 and of 80,000 slots in turn.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager
from datetime import timedelta
from pathlib import Path
from statistics import median
from typing import Final, NamedTuple

import httpx
import msgspec
import psycopg
from pydantic import SecretStr

from bench.access.served import admin_key, api
from bench.allocate.callers import Callers, Created, Load
from bench.allocate.releases import Releases
from bench.harness.bench_process import BenchProcess, bench_process
from bench.harness.measure import (
    Bench,
    Measurement,
    Pair,
    Progress,
    Round,
    TakeRound,
    percentile,
    ratio,
    rounded,
)
from bench.harness.servers import NO_REQUEST_LIMITS, bench_folder, migrated_postgres, sqlalchemy_url
from bench.ledger.workload import full_command
from bench.placement.fleet import IMAGE, PLAIN, Fleet
from control_plane.commands.catalogue import create_entry
from control_plane.commands.placement_request import NewAllocation
from control_plane.commands.placing import create_allocation
from control_plane.commands.projects import create_project
from control_plane.origin import Origin
from control_plane.programs import SERVER, Program
from control_plane.settings import Settings
from control_plane.wiring import Plane, plane
from deploy.embedded.children import Child, installed_program
from deploy.embedded.lab_catalogue import GUEST, SMALL
from deploy.embedded.postgres import PostgresServer
from deploy.embedded.redis import RedisServer, running_redis
from events.allocations import AllocationRequested
from events.ledger.append import append
from events.values import SshPublicKey, allocation_of, correlation_of, new_uuid, project_id

ROUNDS: Final = 3
RATE: Final = 303.0
"""Creations per second in the open loop. They are a little more than the 300/s that have to be sustained, because the
last response arrives after the last request was due.
"""
SECONDS: Final = 60
CLOSED: Final = 3000
"""Number of creations in the closed loop, in which callers create allocations as fast as they can."""
PROJECTS: Final = 50
CONNECTIONS: Final = 384
"""Number of connections of the callers: enough for the closed loop that a full group of creations waits in each API
process while another group is being recorded. With fewer callers, groups are smaller and creations per second fewer.
"""
API_PROCESSES: Final = 2
"""Number of worker processes of the API: one for each core, as `./dev up` starts."""
NODES: Final = 1000
FULL: Final = 0.5
"""Share of the slots that other allocations hold during the whole run."""
KEPT_FULL: Final = 0.7
APPEND_CONNECTIONS: Final = 8
APPENDS: Final = 250
"""Number of bare appends that each connection makes."""
SMALL_FLEET, LARGE_FLEET = 100, 10_000
CREATIONS: Final = 100
"""Number of creations that a round measures in the small fleet, and in the large fleet."""
POLL_SECONDS: Final = 0.3
_ORIGIN_REASON: Final = "bench"
_LIMITS: Final = {"slots": 1_000_000, "vcpus": 100_000_000, "price_per_hour": "1000000"}


def _origin() -> Origin:
    return Origin(actor="key:bench", reason=_ORIGIN_REASON, correlation_id=new_uuid())


class _Site(NamedTuple):
    """A database with a fleet and a catalogue, and its servers."""

    server: PostgresServer
    redis: RedisServer
    folder: Path

    def settings(self) -> Settings:
        return Settings(
            database_url=SecretStr(sqlalchemy_url(self.server)), redis_url=SecretStr(self.redis.url)
        )


@contextmanager
def _site(folder: Path, nodes: int) -> Iterator[_Site]:
    with ExitStack() as opened:
        server = opened.enter_context(migrated_postgres(folder))
        Fleet(nodes, FULL).write(server.admin_dsn)
        yield _Site(server, opened.enter_context(running_redis(folder / "redis")), folder)


async def publish(made: Plane) -> None:
    """Publish the SKU and the image that the fleet offers."""
    sku = msgspec.structs.replace(SMALL, vcpus=24, memory_mib=245_760)
    await made.handle(create_entry("sku", PLAIN, sku, _origin(), _no_answer))
    await made.handle(create_entry("image", IMAGE, GUEST, _origin(), _no_answer))


def _no_answer(_fact: object) -> str:
    return ""


@contextmanager
def _projector(site: _Site) -> Iterator[None]:
    environment = {
        "SLICEPLANE_DATABASE_URL": sqlalchemy_url(site.server),
        "SLICEPLANE_REDIS_URL": site.redis.url,
    }
    program = installed_program(SERVER, Program.PROJECTOR)
    child = Child("projector", tuple(program), site.folder / "projector.log", environment)
    child.start()
    try:
        yield
    finally:
        child.stop()


async def _keys(port: int, admin: str) -> list[str]:
    """Create the projects, each with limits that it never reaches, and return an API key of a caller of each."""
    headers = {"Authorization": f"Bearer {admin}"}
    keys = list[str]()
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", headers=headers) as client:
        for number in range(PROJECTS):
            name = f"bench-{number}"
            (await client.post("/v1/projects", json={"id": name})).raise_for_status()
            (await client.put(f"/v1/projects/{name}/limits", json=_LIMITS)).raise_for_status()
            wanted = {"name": name, "role": "caller", "projects": [name]}
            keys.append((await client.post("/v1/keys", json=wanted)).raise_for_status().json()["key"])
    return keys


class _Creations:
    """Creations over HTTP, and bare appends to the same database."""

    def __init__(
        self, callers: BenchProcess, appending: Sequence[psycopg.AsyncConnection], admin: httpx.AsyncClient
    ) -> None:
        self._callers, self._appending, self._admin, self._appended = callers, appending, admin, 0

    async def create(self, load: Load) -> Created:
        """Create allocations. Raises `RuntimeError` if one is refused."""
        created = await self._callers.request(load, Created, SECONDS * 10)
        if created.refused:
            raise RuntimeError(f"the API refused requests (number by status code): {created.refused}")
        return created

    async def append(self) -> float:
        """Append commands of the size of a creation directly to the ledger, after the projector has finished the work
        of the creations before. Return their number per second.
        """
        await self._settled()
        first, self._appended = self._appended, self._appended + APPENDS
        commands = [
            [full_command(number, index) for index in range(first, first + APPENDS)]
            for number in range(len(self._appending))
        ]
        began = time.perf_counter()

        async def append_all(number: int) -> None:
            for each in commands[number]:
                await append(
                    self._appending[number], each.changes, each.cause, key=each.key, answer=each.answer
                )

        await asyncio.gather(*map(append_all, range(len(self._appending))))
        return APPENDS * len(self._appending) / (time.perf_counter() - began)

    async def _settled(self) -> None:
        """Wait until the projector advances no read model any more."""
        before, now = None, await self._positions()
        while now != before:
            await asyncio.sleep(POLL_SECONDS)
            before, now = now, await self._positions()

    async def _positions(self) -> dict[str, int]:
        found = (await self._admin.get("/v1/projections")).raise_for_status().json()
        return {each["name"]: each["position"] for each in found["items"]}


@asynccontextmanager
async def _creations(folder: Path) -> AsyncIterator[_Creations]:
    async with AsyncExitStack() as opened:
        site = opened.enter_context(_site(folder, NODES))
        async with plane(site.settings(), pool=1) as made:
            admin = await admin_key(made)
            await publish(made)
        opened.enter_context(_projector(site))
        own = folder / "api"
        own.mkdir()
        settings = {**NO_REQUEST_LIMITS, "SLICEPLANE_API_WORKERS": str(API_PROCESSES)}
        port = opened.enter_context(api(site.server, site.redis, own, settings))
        keys = await _keys(port, admin)
        callers = await opened.enter_async_context(bench_process("bench.allocate.callers"))
        await callers.request(Callers(port, keys, PLAIN, CONNECTIONS), type(None))
        releases = await opened.enter_async_context(bench_process("bench.allocate.releases"))
        await releases.send(Releases(sqlalchemy_url(site.server), site.redis.url, KEPT_FULL))
        appending = [
            await opened.enter_async_context(
                await psycopg.AsyncConnection.connect(site.server.app_dsn, autocommit=True)
            )
            for _ in range(APPEND_CONNECTIONS)
        ]
        client = httpx.AsyncClient(
            base_url=f"http://127.0.0.1:{port}", headers={"Authorization": f"Bearer {admin}"}
        )
        creations = _Creations(callers, appending, await opened.enter_async_context(client))
        await creations.create(Load(CLOSED // 2, PROJECTS, 0.0))
        await creations.append()
        yield creations


def _request() -> NewAllocation:
    name = allocation_of(new_uuid())
    request = AllocationRequested(
        allocation_id=name,
        project=project_id("default"),
        sku=PLAIN,
        network_mode="private-nat",
        image=IMAGE,
        ssh_authorized_keys=(SshPublicKey("ssh-ed25519 AAAA bench"),),
        lease_seconds=3600,
        slot_count=1,
        labels={},
    )
    return NewAllocation(request, timedelta(seconds=30), simulated_allowed=False)


async def _creation(made: Plane) -> float:
    """Return the milliseconds of one creation, without HTTP."""
    new = _request()
    origin = Origin("key:bench", _ORIGIN_REASON, correlation_of(new.request.allocation_id))
    began = time.perf_counter()
    await made.handle(create_allocation(new, origin, lambda _facts, _now: ""))
    return (time.perf_counter() - began) * 1000


@asynccontextmanager
async def _running() -> AsyncIterator[TakeRound]:
    async with AsyncExitStack() as opened:
        folder = opened.enter_context(bench_folder())
        creations = await opened.enter_async_context(_creations(folder / "main"))
        fleets: dict[str, Plane] = {}
        for nodes in (SMALL_FLEET, LARGE_FLEET):
            site = opened.enter_context(_site(folder / str(nodes), nodes))
            made = await opened.enter_async_context(plane(site.settings(), pool=1))
            await made.handle(create_project(project_id("default"), "", _origin(), _no_answer))
            await publish(made)
            opened.enter_context(_projector(site))
            fleets[f"fleet {nodes}"] = made

        async def take(_number: int, progress: Progress) -> Round:
            found: dict[str, list[float]] = {each: [] for each in fleets}
            for name, callers in (("one", 1), ("many", PROJECTS)):
                created = await creations.create(Load(int(RATE * SECONDS), callers, RATE))
                found[f"rate {name}"] = [created.created / created.seconds]
                found[f"latency {name}"] = created.latencies
                progress(0.4 if name == "one" else 0.8)
            closed = await creations.create(Load(CLOSED, PROJECTS, 0.0))
            found["closed"] = [closed.created / closed.seconds]
            found["append"] = [await creations.append()]
            progress(0.9)
            for number in range(CREATIONS):
                for name, made in fleets.items() if number % 2 else reversed(fleets.items()):
                    found[name].append(await _creation(made))
            return found

        yield take


def _results(rounds: Sequence[Round]) -> tuple[Measurement, ...]:
    rates = {each: median(_single(rounds, f"rate {each}")) for each in ("one", "many")}
    late = [percentile("allocate.p95_ms", rounds, f"latency {each}", "ms", 95) for each in rates]
    small, large = (f"fleet {each}" for each in (SMALL_FLEET, LARGE_FLEET))
    bases = [median(each[small]) for each in rounds]
    growth = median(median(each[large]) / base for each, base in zip(rounds, bases, strict=True))
    return (
        Measurement("allocate.rate", rounded(min(rates.values())), "1/s"),
        Measurement("allocate.rate_one_project", rounded(rates["one"]), "1/s"),
        Measurement("allocate.rate_many_projects", rounded(rates["many"]), "1/s"),
        max(late, key=lambda each: each.value),
        Measurement("allocate.closed_rate", rounded(median(_single(rounds, "closed"))), "1/s"),
        ratio("allocate.ratio_append", rounds, Pair("closed", "append")),
        Measurement("allocate.scaling", rounded(growth), "ratio", rounded(median(bases))),
    )


def _single(rounds: Sequence[Mapping[str, Sequence[float]]], series: str) -> list[float]:
    return [each[series][0] for each in rounds]


BENCH: Final = Bench(
    name="allocate",
    explanation="creations of allocations over HTTP at 303/s, their latency, and their rate against that of bare appends",
    shape=f"allocate {RATE}/s for {SECONDS} s, {CONNECTIONS} connections, {API_PROCESSES} API processes, {NODES} nodes",
    rounds=ROUNDS,
    running=_running,
    results=_results,
)
