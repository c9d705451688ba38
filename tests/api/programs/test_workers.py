"""An API program with several workers: each answers requests, and all of them start, restart and end together."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from deploy.embedded.children import Child, installed_program
from tests.api.api_process import ApiProcess, api_process
from tests.servers.plane import RunningPlane
from tests.waiting import until

WORKERS = 2
PROCESSES = "select count(distinct process) from work.access where path = '/v1/projects' and principal is not null and opened_at > %(since)s"


@pytest.fixture
def api(emptied_plane: RunningPlane, tmp_path: Path) -> Iterator[ApiProcess]:
    with api_process(emptied_plane, tmp_path / "api.log", SLICEPLANE_API_WORKERS=str(WORKERS)) as api:
        yield api


def workers_of(api: ApiProcess) -> set[int]:
    """Return the process ids of the workers."""
    pid = api.child.pid
    return {int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()}


def create_projects(api: ApiProcess, prefix: str, count: int) -> None:
    """Create projects, each over a connection of its own."""
    for number in range(count):
        with api.plane.client() as client:
            assert client.post("/projects", json={"id": f"{prefix}-{number}"}).status_code == 201


def is_running(pid: int) -> bool:
    """Return whether a process has not ended; one that has ended may still wait for its parent (state Z)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_requests_on_one_address_are_answered_by_every_worker(api: ApiProcess) -> None:
    assert len(workers_of(api)) == WORKERS
    [(since,)] = api.plane.rows("select clock_timestamp()")
    create_projects(api, "many", 40)
    assert api.plane.rows(PROCESSES, since=since) == [(WORKERS,)]


def test_sigterm_to_the_program_ends_watches_and_all_workers(api: ApiProcess) -> None:
    workers = workers_of(api)
    with api.plane.client(Accept="text/event-stream").stream("GET", "/events") as watch:
        assert watch.status_code == httpx.codes.OK
        assert api.child.pid is not None
        os.kill(api.child.pid, signal.SIGTERM)
        for _ in watch.iter_lines():
            pass  # the response ends without an error
    until(lambda: api.child.status is not None, "the program has ended")
    assert api.child.status == 0
    assert not any(map(is_running, workers))


def test_killed_worker_is_restarted_while_the_others_answer(api: ApiProcess) -> None:
    before = workers_of(api)
    killed = min(before)
    os.kill(killed, signal.SIGKILL)
    until(lambda: len(workers_of(api) - {killed}) == WORKERS, "another worker was started")
    assert before - {killed} < workers_of(api)
    create_projects(api, "after", 20)
    assert "api_worker_restarted" in Path(api.child.log).read_text()


def test_workers_end_when_the_first_process_is_killed(api: ApiProcess) -> None:
    workers = workers_of(api)
    api.kill()
    until(lambda: not any(map(is_running, workers)), "all workers have ended")


def test_worker_that_cannot_run_ends_the_program_with_its_message_and_exit_code(
    api: ApiProcess, tmp_path: Path
) -> None:
    """The database does not exist, which a worker finds after the first process has opened the address."""
    environment = {**api.child.environment, "SLICEPLANE_LISTEN": "127.0.0.1:0"}
    environment["SLICEPLANE_DATABASE_URL"] = "postgresql+psycopg://app:x@127.0.0.1:1/ledger"
    child = Child("api", installed_program("sliceplane-server", "api"), tmp_path / "second.log", environment)
    child.start()
    until(lambda: child.status is not None, "the program has ended")
    assert child.status == 1
    assert "Cannot use the database" in (tmp_path / "second.log").read_text()


def test_second_program_on_the_same_address_is_refused_although_workers_share_it(
    api: ApiProcess, tmp_path: Path
) -> None:
    child = Child(
        "api", installed_program("sliceplane-server", "api"), tmp_path / "second.log", api.child.environment
    )
    child.start()
    until(lambda: child.status is not None, "the program has ended")
    assert child.status == 1
    assert "The API cannot listen on 127.0.0.1:" in (tmp_path / "second.log").read_text()
