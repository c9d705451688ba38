"""The projector redacts rows of events that it read before their project's personal data was erased."""

from datetime import UTC, datetime

import sqlalchemy as sa

from control_plane.database import engine_of
from deploy.embedded.stack import sqlalchemy_url
from events.allocations import AllocationRequested
from events.envelope import Cause, Recorded
from events.facts import Fact
from events.projects import PersonalDataDestroyed
from events.values import AllocationId, Epoch, ImageName, Position, ProjectId, SkuName, StreamId, new_uuid
from read_models.allocations import allocation_label
from read_models.projections import PROJECTIONS
from read_models.rows import Span
from read_models.usage.tables import usage_request
from tests.servers.postgres import Database

NOW = datetime(2026, 1, 1, tzinfo=UTC)
PROJECT, OTHER = ProjectId("private"), ProjectId("other")


def recorded(position: int, fact: AllocationRequested | PersonalDataDestroyed) -> Recorded[Fact]:
    cause = Cause("caller:a", "request", new_uuid(), NOW)
    return Recorded(Position(position), new_uuid(), StreamId(f"s{position}"), 1, fact, cause, NOW, Epoch(1))


def request(position: int, project: ProjectId) -> Recorded[Fact]:
    fact = AllocationRequested(
        AllocationId(f"a{position}"),
        project,
        SkuName("s"),
        "private-nat",
        ImageName("i"),
        (),
        60,
        1,
        {"a": "b"},
    )
    return recorded(position, fact)


async def test_labels_of_earlier_requests_of_the_erased_project_are_removed_and_no_others(
    database: Database,
) -> None:
    engine = engine_of(sqlalchemy_url(database.app_dsn).render_as_string(hide_password=False), 1)
    erased = PersonalDataDestroyed(PROJECT, "k", archived=False, reason="requested")
    ranges = [
        [request(1, PROJECT), request(2, OTHER)],
        [request(3, PROJECT), recorded(4, erased), request(5, PROJECT)],
    ]
    parts = [part for name in ("allocations", "usage") for part in PROJECTIONS[name].parts]
    for part in parts:
        if part.table not in (allocation_label, usage_request):
            continue
        gathered, after = part.gather(), 0
        async with engine.begin() as conn:
            for events in ranges:
                for each in events:
                    gathered.add(each)
                upto = events[-1].position
                await gathered.write(conn, Span(Position(after), upto))
                after = upto
    async with engine.connect() as conn:
        labelled = [*await conn.scalars(sa.select(allocation_label.c.position).order_by("position"))]
        query = sa.select(usage_request.c.position).where(usage_request.c.labels != {}).order_by("position")
        used = [*await conn.scalars(query)]
    await engine.dispose()
    assert (labelled, used) == ([2, 5], [2, 5])
