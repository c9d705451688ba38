"""The demo fleet of `./dev up --demo`: its data are recorded once, in an empty ledger, and its agents run with `up`.

The file `demo.json` of the state folder lists its nodes. It is written before the first event of an empty ledger, and
marked as complete after the last one. `up` therefore refuses a state folder with incomplete demo data, and `up --demo`
may delete its database and record the data again.
"""

import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec
from sqlalchemy.engine import URL

from deploy.demo.clock import LedgerNotEmpty, require_empty_ledger
from deploy.demo.hosting import HostedNode, Hosting
from deploy.demo.plan import DemoNode, Sizes
from deploy.demo.plan import nodes as nodes_of
from deploy.embedded.children import Child
from deploy.embedded.client import Api
from deploy.embedded.layout import Layout, write_private_text
from deploy.embedded.node_files import token_file, write_token
from deploy.embedded.postgres_cluster import clear_stale_locks
from deploy.embedded.screen import Screen

HEARTBEAT_SECONDS: Final = 20
"""Interval of the heartbeats of a demo fleet: all its agents share one machine with the control plane."""
_ASKED_EVERY: Final = 10


class DemoRefused(Exception):
    """Demo data cannot be recorded in this state folder, or are incomplete."""


class _Record(msgspec.Struct):
    """Content of `demo.json`."""

    sizes: Sizes
    complete: bool = False


class DemoFleet:
    """The demo fleet of a state folder. Without demo data, all methods except `record` do nothing.

    Raises `DemoRefused` for incomplete demo data, unless `again` is true: then they are deleted, because they are
    recorded again.
    """

    def __init__(self, layout: Layout, screen: Screen, *, again: bool = False) -> None:
        self._layout, self._screen = layout, screen
        self._path = layout.state / "demo.json"
        self._agents: Child | None = None
        self._record = self._read(again=again)

    def _read(self, *, again: bool) -> _Record | None:
        if not self._path.exists():
            return None
        record = msgspec.json.decode(self._path.read_bytes(), type=_Record)
        if record.complete:
            return record
        if not again:
            raise DemoRefused(
                f"the demo data in {self._layout.state} are incomplete, because their recording was interrupted; run"
                " ./dev up with --demo, which records them again, or empty the folder with ./dev reset"
            )
        self._screen.show("the recording of the demo data was interrupted; it begins again")
        # A killed `up` leaves Postgres behind for a moment, which would write into the next database.
        clear_stale_locks(self._layout.database / "data", self._layout.run / "postgres")
        # `demo.json` last, so that an interrupted deletion is repeated.
        shutil.rmtree(self._layout.database, ignore_errors=True)
        self._path.unlink()
        return None

    @property
    def exists(self) -> bool:
        """Whether the state folder has demo data."""
        return self._record is not None

    def record(self, admin_dsn: str, app: URL, sizes: Sizes) -> None:
        """Record the demo data, unless the state folder has them already. Raises `DemoRefused` if the
        ledger has events."""
        if self.exists:
            self._screen.show("the demo data exist already")
            return
        # Imported here and not above: it imports all commands of the control plane, and every `./dev up` would wait.
        from deploy.demo.fill import fill

        try:
            require_empty_ledger(admin_dsn)
        except LedgerNotEmpty as refused:
            raise DemoRefused(
                f"{refused}; use another state folder (--state DIR), or empty it with ./dev reset"
            ) from refused
        record = _Record(sizes)
        self._write(record)
        with self._screen.progress(f"record {sizes.days:g} days of {sizes.nodes} nodes") as show:
            fill(admin_dsn, app, sizes, lambda share, moment: show(share, f"{moment:%Y-%m-%d}"))
        record.complete = True
        self._write(record)
        self._record = record

    def _write(self, record: _Record) -> None:
        write_private_text(self._path, msgspec.json.encode(record).decode())

    def start_agents(self, api: Api, api_url: str, ca_file: Path) -> None:
        """Start the process with the agents. Each agent without a token gets one first."""
        if self._record is None:
            return
        attended = [each for each in nodes_of(self._record.sizes) if each.attended]
        self._ensure_tokens(api, attended)
        path = self._layout.state / "demo-agents.json"
        hosting = Hosting(api_url, str(ca_file), [self._hosted(each) for each in attended])
        write_private_text(path, msgspec.json.encode(hosting).decode())
        argv = (sys.executable, "-m", "deploy.demo.agents", str(path))
        self._agents = Child("demo-agents", argv, self._layout.logs / "demo-agents.log")
        self._agents.start()

    def _ensure_tokens(self, api: Api, nodes: list[DemoNode]) -> None:
        """Create a token for each node that has none, and request a task from some of these nodes."""
        without = [each.name for each in nodes if not token_file(self._layout, each.name).exists()]
        if not without:
            return
        for name in without[::_ASKED_EVERY]:
            api.post("/tasks", {"kind": "node.verify", "node_id": name})
        with self._screen.progress(f"reopen the enrolment of {len(without)} nodes") as show:
            for number, name in enumerate(without, 1):
                write_token(self._layout, name, api.post(f"/nodes/{name}/enrolment")["enrolment_token"])
                show(number / len(without), name)

    def _hosted(self, node: DemoNode) -> HostedNode:
        folder, token = self._layout.node(node.name), token_file(self._layout, node.name)
        return HostedNode(node, str(token), str(folder))

    def supervise(self, show: Callable[[str], None]) -> None:
        """Restart the process with the agents if it has exited."""
        if self._agents is not None:
            self._agents.supervise(show)

    def stop(self) -> None:
        if self._agents is not None:
            self._agents.stop()
