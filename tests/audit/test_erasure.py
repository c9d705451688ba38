"""An erasure removes the personal data of a project from every table of the database, and breaks no proof."""

import asyncio
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import pytest
from psycopg.conninfo import conninfo_to_dict
from typer.testing import CliRunner

from control_plane.cli.program import program
from control_plane.database import engine_of
from control_plane.projector.verify import verify
from deploy.embedded.postgres import PostgresServer
from tests.api.access.principals import create_project, issue
from tests.api.lifecycle import Lifecycle
from tests.api.node import admit, allocate
from tests.api.streams import open_stream, watch_events
from tests.audit.test_proofs_end_to_end import await_sealed
from tests.projections.plane_requests import rebuild
from tests.servers.plane import ADMIN_KEY, RunningPlane, running
from tests.waiting import until

MARKER = "person-5d1f"
PROJECT = "private"
REASON = {"reason": "request of the owner"}
REQUEST = {
    "project": PROJECT,
    "labels": {"owner": MARKER},
    "user_data": f"#cloud-config\n# {MARKER}\n",
    "ssh_authorized_keys": [
        f"ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIKtdAqiXxf9ydyCb6OeKHoTKlwCNcFyrsAbMTbBiv9BG {MARKER}"
    ],
}


@pytest.fixture
def plane(postgres_server: PostgresServer) -> Iterator[RunningPlane]:
    with running(postgres_server) as plane:
        yield plane


@pytest.fixture
def admin(plane: RunningPlane) -> Iterator[httpx.Client]:
    with plane.client() as client:
        yield client


def erase(admin: httpx.Client, project: str = PROJECT) -> httpx.Response:
    return admin.request("DELETE", f"/projects/{project}/personal-data", json=REASON)


def start(plane: RunningPlane, admin: httpx.Client) -> Lifecycle:
    """Create the project, and an allocation that holds the only slot of a node."""
    node = admit(plane, "n1")
    made = admin.post("/projects", json={"id": PROJECT, "description": f"project of {MARKER}"})
    assert made.status_code == 201, made.text
    headers = {"Idempotency-Key": "first"}
    answer = admin.post("/allocations", json={"sku": "lab.small", **REQUEST}, headers=headers)
    assert answer.status_code == 202, answer.text
    # The order of the slot is sent, so that it is stored as a task.
    until(
        lambda: bool(plane.rows("select 1 from work.task where allocation_id is not null")), "an order exists"
    )
    return Lifecycle(plane, node, answer.json()["id"], [])


def release(life: Lifecycle) -> None:
    """Release the allocation, and wait until its orders have ended."""
    life.release()
    life.report("slice.removed", absent=["port", "lease"])
    started = "select count(*) from work.task where kind like 'slice.apply%%' and ended_at is null"
    until(lambda: life.plane.rows(started) == [(0,)], "the order to start the slice has ended")


def dump(plane: RunningPlane, programs: Path) -> str:
    """Return the whole database as SQL."""
    options = {name: str(value) for name, value in conninfo_to_dict(plane.database.admin_dsn).items()}
    made = subprocess.run(
        [
            programs / "pg_dump",
            "-h",
            options["host"],
            "-p",
            options["port"],
            "-U",
            options["user"],
            options["dbname"],
        ],
        env={**os.environ, "PGPASSWORD": options.get("password", "")},
        capture_output=True,
        check=True,
    )
    return made.stdout.decode()


def differences(plane: RunningPlane) -> object:
    """Return the differences between the live tables and a replay of the ledger."""

    async def report(*_: object) -> None: ...

    async def compare() -> Any:
        engine = engine_of(plane.settings.database_url.get_secret_value(), 4)
        try:
            return (await verify(engine, report))[1]
        finally:
            await engine.dispose()

    return asyncio.run(compare())


def projected(plane: RunningPlane) -> None:
    """Wait until the projector has read the whole ledger."""
    last = plane.last_position()
    behind = (
        "select count(*) from read.checkpoint where name in ('allocations', 'usage') and position < %(last)s"
    )
    until(lambda: plane.rows(behind, last=last) == [(0,)], "the read models are up to date")


def sliceplane(plane: RunningPlane, *words: object) -> tuple[int, str]:
    environment = {"SLICEPLANE_URL": plane.url, "SLICEPLANE_API_KEY": ADMIN_KEY}
    done = CliRunner().invoke(program, [*map(str, words)], env=environment, prog_name="sliceplane")
    return done.exit_code, done.output


def test_erased_data_is_in_no_table_and_every_proof_stays_valid(
    plane: RunningPlane, admin: httpx.Client, postgres_programs: Path, tmp_path: Path
) -> None:
    life = start(plane, admin)
    release(life)
    projected(plane)
    before = plane.last_position()
    assert MARKER in dump(plane, postgres_programs), "the read models have the labels"
    [stored] = plane.rows("select data from ledger.event where type = 'allocation.requested'")
    assert MARKER not in stored[0]
    await_sealed(plane)
    key = plane.sealing.sealing_key_file.with_suffix(".pub.pem")
    kept, file = tmp_path / "heads", tmp_path / "ledger.zst"
    assert sliceplane(plane, "audit", "head", "--keep", kept, "--key", key)[0] == 0
    assert sliceplane(plane, "audit", "export", file)[0] == 0
    shown = admin.get(f"/allocations/{life.allocation}").json()

    answer = erase(admin)
    assert (answer.status_code, answer.json()["description"]) == (200, "erased")
    assert MARKER not in dump(plane, postgres_programs)
    projected(plane)
    assert MARKER not in dump(plane, postgres_programs)
    await_sealed(plane)
    after = tmp_path / "after.zst"
    assert sliceplane(plane, "audit", "export", after)[0] == 0
    for export in (file, after):
        code, output = sliceplane(plane, "audit", "verify", export, "--key", key, "--head", kept)
        assert code == 0, output
    assert plane.rows("select data from ledger.event where type = 'allocation.requested'") == [stored]

    assert differences(plane) == ()
    rebuild(plane, "allocations", "projects", "usage")
    assert differences(plane) == ()
    assert MARKER not in dump(plane, postgres_programs)

    now = admin.get(f"/allocations/{life.allocation}").json()
    past = admin.get(f"/allocations/{life.allocation}", params={"at": f"position:{before}"}).json()
    assert (now["labels"], past["labels"]) == ({}, {})
    assert (now["state"], now["sku"], now["project"]) == (shown["state"], shown["sku"], PROJECT)
    past_project = admin.get(f"/projects/{PROJECT}", params={"at": f"position:{before}"}).json()
    assert past_project["description"] == "erased"
    events = admin.get("/events", params={"project": PROJECT, "limit": 500}).text
    assert "project.personal_data_destroyed" in events
    assert MARKER not in events


def test_erasure_is_refused_with_every_reason_while_the_project_holds_a_slot_or_waits(
    plane: RunningPlane, admin: httpx.Client
) -> None:
    life = start(plane, admin)
    queued = allocate(plane, **REQUEST, wait_for_capacity=True)
    assert queued.status_code == 202, queued.text
    refused = erase(admin)
    assert refused.status_code == 409
    reasons = {each["code"]: each["message"] for each in refused.json()["reasons"]}
    assert life.allocation in reasons["project_in_use"]
    assert queued.json()["id"] in reasons["project_requests_waiting"]
    assert plane.rows("select count(*) from keys.project_key where secret is null") == [(0,)]


def test_second_erasure_of_a_project_changes_nothing_and_its_next_allocation_creates_a_new_key(
    plane: RunningPlane, admin: httpx.Client
) -> None:
    release(start(plane, admin))
    assert erase(admin).status_code == 200
    position = plane.last_position()
    assert erase(admin).status_code == 200
    assert plane.last_position() == position

    again = admin.post(
        "/allocations", json={"sku": "lab.small", **REQUEST}, headers={"Idempotency-Key": "first"}
    )
    assert [each["code"] for each in again.json()["reasons"]] == ["response_erased"]
    made = allocate(plane, **REQUEST)
    assert made.status_code == 202, made.text
    assert made.json()["labels"] == {"owner": MARKER}
    projected(plane)
    [labels] = plane.rows("select labels from read.usage_request order by position desc limit 1")
    assert labels == ({"owner": MARKER},)
    assert plane.rows(
        "select count(*) from keys.project_key where project = %(project)s", project=PROJECT
    ) == [(2,)]
    assert differences(plane) == ()


def test_archived_project_is_erased_with_the_reason_of_its_archival(
    plane: RunningPlane, admin: httpx.Client
) -> None:
    create_project(plane, PROJECT)
    assert admin.post(f"/projects/{PROJECT}/archive", json={"reason": f"left: {MARKER}"}).is_success
    assert admin.get(f"/projects/{PROJECT}").json()["reason"] == f"left: {MARKER}"
    code, output = sliceplane(plane, "projects", "erase", PROJECT, "--reason", "request of the owner")
    assert code == 0, output
    shown = admin.get(f"/projects/{PROJECT}").json()
    assert (shown["description"], shown["reason"]) == ("erased", "erased")
    assert differences(plane) == ()


def test_watch_after_an_erasure_sends_no_erased_data_from_memory(
    plane: RunningPlane, admin: httpx.Client
) -> None:
    path = f"/events/watch?project={PROJECT}"
    # The feed keeps messages in memory while there is a watch.
    with open_stream(plane, path) as stream:
        before = plane.last_position()
        made = admin.post("/projects", json={"id": PROJECT, "description": f"project of {MARKER}"})
        assert made.status_code == 201
        assert MARKER in str(stream.take(1))
        assert erase(admin).status_code == 200
        assert [each.type for each in stream.take(1)] == ["project.personal_data_destroyed"]

        found = watch_events(plane, f"{path}&after=position:{before}", 2)

    assert [each.type for each in found] == ["project.created", "project.personal_data_destroyed"]
    assert MARKER not in str(found)
    assert found[0].data["data"]["description"] == "erased"


def test_erasure_requested_by_a_caller_without_the_admin_role_or_for_an_unknown_project_is_refused(
    plane: RunningPlane, admin: httpx.Client
) -> None:
    create_project(plane, PROJECT)
    key = issue(plane, f"caller-{uuid4().hex[:6]}", "caller", projects=[PROJECT])
    with plane.client(**key.headers) as caller:
        assert erase(caller).status_code == 403
    assert erase(admin, "nowhere").status_code == 404


def test_erasure_of_one_project_leaves_the_data_of_other_projects(
    plane: RunningPlane, admin: httpx.Client
) -> None:
    create_project(plane, PROJECT)
    made = admin.post("/projects", json={"id": "other", "description": f"of {MARKER}"})
    assert made.status_code == 201
    assert erase(admin).status_code == 200
    assert admin.get("/projects/other").json()["description"] == f"of {MARKER}"
