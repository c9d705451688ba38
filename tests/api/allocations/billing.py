"""Helpers of the billing tests: a running allocation, the closing of billing periods, and events that are recorded
after a period was closed.
"""

import asyncio
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from types import MappingProxyType
from typing import Any, Final

import httpx
import psycopg

from events.allocations import LeaseGranted
from events.values import AllocationId
from tests.api.reporting import RunningAllocation
from tests.ledger.given import committed, on
from tests.servers.plane import RunningPlane
from tests.waiting import until

NOTHING: Final[Mapping[str, str]] = MappingProxyType({})
MILLISECOND: Final = timedelta(milliseconds=1)


def get(
    plane: RunningPlane, path: str, query: Mapping[str, str] = NOTHING, headers: Mapping[str, str] = NOTHING
) -> dict[str, Any]:
    with plane.client(**headers) as client:
        answer = client.get(path, params=query)
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def until_known(plane: RunningPlane) -> None:
    """Wait until the usage contains all events of the ledger."""
    last = plane.last_position()
    until(lambda: get(plane, "/usage")["position"] >= last, "the usage has all events")


def text(moment: datetime) -> str:
    return moment.astimezone(UTC).isoformat().replace("+00:00", "Z")


def close(plane: RunningPlane, name: str, begin: datetime, end: datetime, **headers: str) -> httpx.Response:
    body = {"starts_at": text(begin), "ends_at": text(end)}
    with plane.client(**headers) as client:
        return client.post(f"/usage/periods/{name}/close", json=body)


def granted_at(running: RunningAllocation) -> datetime:
    return datetime.fromisoformat(running.view()["lease"]["granted_at"])


def grant_late(running: RunningAllocation, start: datetime) -> int:
    """Record now that the lease of an allocation began at `start`. Return the position of the event."""
    return grant_lease(running.plane, running.id, start)


def grant_lease(plane: RunningPlane, allocation: str, start: datetime) -> int:
    """Record now that the lease of the allocation with this id began at `start` and ends one hour later. Return the
    position of the event.
    """
    stream = f"allocation-{allocation}"

    async def record() -> int:
        async with await psycopg.AsyncConnection.connect(plane.database.app_dsn) as conn:
            [[version]] = plane.rows(
                "select version from ledger.head where stream_id = %(stream)s", stream=stream
            )
            fact = LeaseGranted(AllocationId(allocation), start, start + timedelta(hours=1))
            [recorded] = await committed(conn, on(stream, version, fact))
            return int(recorded.position)

    return asyncio.run(record())
