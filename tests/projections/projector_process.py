"""Process of a projector that a test can stop, continue and kill."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psycopg

from control_plane.programs import SERVER
from deploy.embedded.children import Child, installed_program
from read_models.projections import PROJECTIONS
from tests.projections.fleet import settings_of
from tests.servers.postgres import Database
from tests.waiting import until

LIVE = [each.name for each in PROJECTIONS.values() if not each.inline]


@dataclass(frozen=True)
class ProjectorProcess:
    child: Child

    @property
    def pid(self) -> int:
        assert self.child.pid is not None
        return self.child.pid

    @property
    def leads(self) -> bool:
        """Return whether this projector process has ever been the leader."""
        return '"event": "leadership_acquired"' in self.log()

    def log(self) -> str:
        return self.child.log.read_text()

    def signal(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)

    def kill(self) -> None:
        """Send SIGKILL to the projector process and wait until it has ended."""
        self.signal(signal.SIGKILL)
        self.await_end()

    def await_end(self) -> None:
        until(lambda: _has_ended(self.pid), "the projector process has ended")
        self.child.stop()


@contextmanager
def projector(database: Database, log: Path, failpoints: str = "") -> Iterator[ProjectorProcess]:
    """Run a projector process. At the end, continue it if it is stopped, and end it. Its Redis is unreachable, so that
    the projector polls.
    """
    settings = settings_of(database)
    environment = {
        "SLICEPLANE_DATABASE_URL": settings.database_url.get_secret_value(),
        "SLICEPLANE_REDIS_URL": settings.redis_url.get_secret_value(),
        "SLICEPLANE_FAILPOINTS": failpoints,
        "SLICEPLANE_LOG": "json",
    }
    made = ProjectorProcess(Child("projector", installed_program(SERVER, "projector"), log, environment))
    made.child.start()
    try:
        yield made
    finally:
        if made.child.pid is not None and not _has_ended(made.pid):
            made.signal(signal.SIGCONT)
        made.child.stop()


def _has_ended(pid: int) -> bool:
    """Return whether the process has ended. A zombie counts as ended: its parent, the test process, has not waited for
    it yet (proc(5)).
    """
    state = Path(f"/proc/{pid}/stat")
    return not state.exists() or state.read_text().rpartition(")")[2].split()[0] == "Z"


def caught_up(database: Database) -> bool:
    """Return whether every read model that the projector fills contains all events of the ledger."""
    with psycopg.connect(database.admin_dsn) as conn:
        last = conn.execute("select max(position) from ledger.event").fetchone()
        query = "select count(*) from read.checkpoint where name = any(%s) and position >= %s"
        return last is not None and conn.execute(query, [LIVE, last[0]]).fetchone() == (len(LIVE),)


def open_rebuilds(database: Database) -> int:
    """Return the number of rebuilds of read models that were requested and have not finished."""
    query = """
        select count(*) from (
          select distinct on (stream_id) type from ledger.event where starts_with(stream_id, 'projection-')
          order by stream_id, version desc
        ) last where type = 'projection.rebuild_requested'
    """
    with psycopg.connect(database.admin_dsn) as conn:
        row = conn.execute(query).fetchone()
    assert row is not None
    return int(row[0])
