"""The demo fleet of `./dev up --demo`: its data are recorded once, in an empty ledger, and its agents run with `up`.

The file `demo.json` of the state folder lists its nodes. It is written before the first event and marked as complete
after the last one, so that `up` refuses a state folder with incomplete demo data.
"""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec
from sqlalchemy.engine import URL

from deploy.demo.clock import LedgerNotEmpty
from deploy.demo.hosting import HostedNode, Hosting
from deploy.demo.plan import DemoNode, Sizes
from deploy.demo.plan import nodes as nodes_of
from deploy.embedded.children import Child
from deploy.embedded.client import Api
from deploy.embedded.layout import Layout, write_private_text
from deploy.embedded.node_files import token_file, write_token
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
    """The demo fleet of a state folder. Without demo data, all methods except `record` do nothing."""

    def __init__(self, layout: Layout, screen: Screen) -> None:
        self._layout, self._screen = layout, screen
        self._path = layout.state / "demo.json"
        self._agents: Child | None = None
        self._record = self._read()

    def _read(self) -> _Record | None:
        if not self._path.exists():
            return None
        record = msgspec.json.decode(self._path.read_bytes(), type=_Record)
        if not record.complete:
            raise DemoRefused(
                f"the demo data in {self._layout.state} are incomplete, because the filling was interrupted; "
                f"empty the folder with ./dev reset --state {self._layout.state}, and run ./dev up --demo again"
            )
        return record

    @property
    def exists(self) -> bool:
        """Whether the state folder has demo data."""
        return self._record is not None

    def record(self, admin_dsn: str, app: URL, sizes: Sizes) -> None:
        """Record the demo data, unless the state folder has them already. Raises `DemoRefused`."""
        if self.exists:
            self._screen.show("the demo data exist already")
            return
        # Imported here and not above: it imports all commands of the control plane, and every `./dev up` would wait.
        from deploy.demo.fill import fill

        record = _Record(sizes)
        self._write(record)
        try:
            with self._screen.progress(f"record {sizes.days:g} days of {sizes.nodes} nodes") as show:
                fill(admin_dsn, app, sizes, lambda share, moment: show(share, f"{moment:%Y-%m-%d}"))
        except LedgerNotEmpty as refused:
            self._path.unlink()
            raise DemoRefused(
                f"{refused}; use another state folder (--state DIR), or empty it with ./dev reset"
            ) from refused
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
        size = node.size
        return HostedNode(node.name, node.slots, size.vcpus, size.memory_mib, str(token), str(folder))

    def supervise(self, show: Callable[[str], None]) -> None:
        """Restart the process with the agents if it has exited."""
        if self._agents is not None:
            self._agents.supervise(show)

    def stop(self) -> None:
        if self._agents is not None:
            self._agents.stop()
