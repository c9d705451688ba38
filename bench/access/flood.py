"""The flood of the benchmark `access`: what the callers of other projects notice while one project sends as fast as it
can.

One API process runs with the default limits, as in a deployment. Calm callers of other projects list their allocations
at a fixed rate below their limit; their latency is measured from the moment at which a request is due, so that a late
response also counts for the requests behind it. In each round they send alone, and then during a flood: first while the
flooding project is still within its limit (`burst`), and after its first refused request (`flooded`). Each round floods
with the key of a new project, because a key that has flooded before has no burst. On two cores, the flooding process
competes with the API and Postgres for the processors.

`bench.access.access` combines `running` and `results` with its measurement of authentication and the access log.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Final

import httpx
from pydantic import SecretStr

from bench.access.flooder import Flood, Flooded
from bench.access.served import admin_key, api
from bench.harness.bench_process import BenchProcess, bench_process
from bench.harness.measure import Measurement, Pair, Progress, Round, TakeRound, percentile, ratio
from bench.harness.servers import bench_folder, migrated_postgres, sqlalchemy_url
from control_plane.settings import Settings
from control_plane.wiring import plane
from deploy.embedded.redis import running_redis

SECONDS: Final = 8.0
CALLERS: Final = 5
RATE: Final = 15.0
"""Requests per second of a calm caller; the default limit is 20."""
CONNECTIONS: Final = 32
SHAPE: Final = f"flood {CALLERS} callers at {RATE}/s for {SECONDS} s, {CONNECTIONS} flooding connections"


class _CalmCaller:
    """A caller of a project of its own, with one connection, that lists its allocations `RATE` times per second."""

    def __init__(self, request: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._request, self._reader, self._writer = request, reader, writer

    async def send_until(self, ended: asyncio.Event, offset: float) -> list[float]:
        """Send requests until `ended` is set; return their latencies in milliseconds.

        Raises `RuntimeError` if a request fails.
        """
        found, due = list[float](), time.monotonic() + offset / RATE
        while not ended.is_set():
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            await self._get()
            found.append((time.monotonic() - due) * 1000)
            due += 1 / RATE
        return found

    async def _get(self) -> None:
        self._writer.write(self._request)
        head = await self._reader.readuntil(b"\r\n\r\n")
        if not head.startswith(b"HTTP/1.1 200 "):
            raise RuntimeError(f"a request of a calm caller failed: {head.decode()}")
        lines = dict(line.split(b": ", 1) for line in head.lower().split(b"\r\n")[1:-2])
        await self._reader.readexactly(int(lines[b"content-length"]))


async def _latencies(callers: Sequence[_CalmCaller], ended: asyncio.Event) -> list[float]:
    """Let all calm callers send requests in turn until `ended` is set; return the latencies."""
    sending = (each.send_until(ended, number / len(callers)) for number, each in enumerate(callers))
    return [one for found in await asyncio.gather(*sending) for one in found]


async def _latencies_for(callers: Sequence[_CalmCaller], seconds: float) -> list[float]:
    ended = asyncio.Event()
    asyncio.get_running_loop().call_later(seconds, ended.set)
    return await _latencies(callers, ended)


class _Site:
    """A running API, and an admin that issues the keys of callers."""

    def __init__(self, port: int, admin: httpx.AsyncClient) -> None:
        self.port, self._admin = port, admin

    async def request_of_new_project(self, name: str) -> str:
        """Create a project and a key of it; return the HTTP request with which a caller lists its allocations."""
        (await self._admin.post("/v1/projects", json={"id": name})).raise_for_status()
        wanted = {"name": name, "role": "caller", "projects": [name]}
        key = (await self._admin.post("/v1/keys", json=wanted)).raise_for_status().json()["key"]
        return f"GET /v1/allocations HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {key}\r\n\r\n"

    async def calm_caller(self, name: str) -> _CalmCaller:
        request = await self.request_of_new_project(name)
        return _CalmCaller(request.encode(), *await asyncio.open_connection("127.0.0.1", self.port))


@asynccontextmanager
async def running() -> AsyncIterator[TakeRound]:
    """Run the API, the calm callers and the flooding process; yield the function that measures one round."""
    async with AsyncExitStack() as opened:
        folder = opened.enter_context(bench_folder())
        server = opened.enter_context(migrated_postgres(folder))
        redis = opened.enter_context(running_redis(folder / "redis"))
        settings = Settings(database_url=SecretStr(sqlalchemy_url(server)), redis_url=SecretStr(redis.url))
        async with plane(settings, pool=1) as made:
            key = await admin_key(made)
        port = opened.enter_context(api(server, redis, folder, {}))
        flooder = await opened.enter_async_context(bench_process("bench.access.flooder"))
        admin = httpx.AsyncClient(
            base_url=f"http://127.0.0.1:{port}", headers={"Authorization": f"Bearer {key}"}
        )
        site = _Site(port, await opened.enter_async_context(admin))
        callers = [await site.calm_caller(f"calm-{number}") for number in range(CALLERS)]
        await _latencies_for(callers, SECONDS / 2)

        async def take(number: int, progress: Progress) -> Round:
            alone = await _latencies_for(callers, SECONDS)
            progress(0.5)
            request = await site.request_of_new_project(f"flood-{number}")
            burst, flooded = await _flooded(callers, flooder, Flood(port, request, CONNECTIONS))
            progress(1.0)
            found = {"alone": alone, "burst": burst, "flooded": flooded}
            return {f"{name}.p99": [_p99(latencies)] for name, latencies in found.items()}

        yield take


async def _flooded(
    callers: Sequence[_CalmCaller], flooder: BenchProcess, flood: Flood
) -> tuple[list[float], list[float]]:
    """Return two lists of latencies of the calm callers: before and after the first refused request of the flood."""
    refused = asyncio.Event()
    burst = asyncio.create_task(_latencies(callers, refused))
    await flooder.request(flood, Flooded)
    refused.set()
    within_limit = await burst
    beyond_limit = await _latencies_for(callers, SECONDS)
    await flooder.request(None, Flooded)
    return within_limit, beyond_limit


def _p99(latencies: Sequence[float]) -> float:
    return percentile("access.flood", [{"latencies": latencies}], "latencies", "ms", 99).value


def results(rounds: Sequence[Round]) -> tuple[Measurement, ...]:
    """Return the p99 latency of the calm callers during a flood, divided by their p99 latency without a flood: once for
    a flood beyond its limit, and once for a flood within its limit.
    """
    return (
        ratio("access.flood_ratio", rounds, Pair("flooded.p99", "alone.p99")),
        ratio("access.flood_burst_ratio", rounds, Pair("burst.p99", "alone.p99")),
    )
