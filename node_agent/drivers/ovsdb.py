"""The OVSDB server: asked in its own words (RFC 7047), changed through ovsdbapp.

ovsdbapp keeps a replica, which is right for changing the database and wrong for looking at it: it lags behind, and
when the server hangs it goes on showing what once was. A proof of absence needs the server's own word, so every read
is a `select` on a short connection. The replica's connection opens at the first change and is kept.

A change that misses its deadline may still be carried out later: its transaction sits in the replica's thread. The
connection is given up then, and the next look sees what came of it.
"""

import json
import socket
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from time import monotonic
from typing import Any, Final, TypeVar

from ovsdbapp.backend.ovs_idl import connection, idlutils
from ovsdbapp.exceptions import OvsdbAppException, OvsdbConnectionUnavailable, TimeoutException
from ovsdbapp.schema.open_vswitch.impl_idl import OvsdbIdl

from node_agent.drivers.deadlines import Deadlines, Overdue
from node_agent.slices import HostRefused, HostUnreadable

DATABASE: Final = "Open_vSwitch"
TABLES: Final = ("Open_vSwitch", "Bridge", "Port", "Interface")
STRANGERS: Final = {
    "controller": ("Controller", "target"),
    "mirrors": ("Mirror", "name"),
    "sflow": ("sFlow", "targets"),
    "netflow": ("NetFlow", "targets"),
    "ipfix": ("IPFIX", "targets"),
}
"""Columns of a bridge that name who hears its frames or sets its flows: their table, and what they are known by
(ovs-vswitchd.conf.db(5))."""
LATE: Final = "OVS transaction timed out"
"""ovsdbapp's words for a transaction that it sent again and again."""

Row = Mapping[str, Any]
Command = tuple[str, Mapping[str, Any]]

T = TypeVar("T")


class Ovsdb:
    """`path` is the server's unix socket; `deadline` in seconds holds for every call."""

    def __init__(self, path: Path, deadline: float = 5.0) -> None:
        self._path, self._deadline = path, deadline
        self._deadlines = Deadlines()
        self._turn = threading.Lock()
        self._api: OvsdbIdl | None = None

    def close(self) -> None:
        with self._turn:
            self._give_up()

    def select(self, columns: Mapping[str, Sequence[str]]) -> Mapping[str, list[Row]]:
        """All rows of each named table, of one moment. Raises `HostUnreadable`."""
        operations = [
            {"op": "select", "table": table, "where": [], "columns": list(names)}
            for table, names in columns.items()
        ]
        answers = self._ask("transact", [DATABASE, *operations])
        if not all("rows" in answer for answer in answers):
            raise HostUnreadable(f"ovsdb-server refused to select: {answers}")
        return {table: answer["rows"] for table, answer in zip(columns, answers, strict=True)}

    def change(self, what: str, *commands: Command) -> None:
        """Run ovsdbapp commands, named with their arguments, in one transaction, and wait for ovs-vswitchd.

        Raises `HostRefused` when the answer was no, and `HostUnreadable` when there was none; both quote `what`.
        """
        with self._turn:
            given_up = threading.Event()
            ends = monotonic() + self._deadline
            try:
                if self._api is None:
                    self._api = self._within(ends, lambda: self._connect(given_up))
                api = self._api
                self._within(ends, lambda: _commit(api, commands))
            except (Overdue, OSError, HostUnreadable, TimeoutException, OvsdbConnectionUnavailable) as error:
                given_up.set()
                self._give_up()
                raise HostUnreadable(f"{what}: ovs: {_why(error)}") from error
            except RuntimeError as error:
                # So ovsdbapp passes on the server's refusal, and its own of what it does not find; the connection is
                # sound. Of one that was lost, and did not come back in time, it tells in the same way.
                verdict = HostUnreadable if str(error) == LATE else HostRefused
                raise verdict(f"{what}: ovs: {error}") from error

    def _within(self, ends: float, call: Callable[[], T]) -> T:
        return self._deadlines.within(max(0.0, ends - monotonic()), call)

    def _connect(self, given_up: threading.Event) -> OvsdbIdl:
        helper = idlutils.create_schema_helper(self._ask("get_schema", [DATABASE]))
        for table in TABLES:
            helper.register_table(table)
        idl = connection.OvsdbIdl(f"unix:{self._path}", helper)

        class Api(OvsdbIdl):  # type: ignore[misc]  # ovsdbapp has no types
            # ovsdbapp keeps its connection on the class, one for a whole process; this is one for each server.
            _ovsdb_connection = None

        api = Api(connection.Connection(idl, self._deadline))
        if given_up.is_set():
            # Nobody waits any more, and another may be connecting.
            _close(api)
            raise Overdue("connected too late")
        return api

    def _give_up(self) -> None:
        api, self._api = self._api, None
        if api is not None:
            _close(api)

    def _ask(self, method: str, params: list[Any]) -> Any:
        ends = monotonic() + self._deadline
        question = {"method": method, "params": params, "id": 0}
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as wire:
                wire.settimeout(self._deadline)
                wire.connect(str(self._path))
                wire.sendall(json.dumps(question).encode())
                answer = _read_answer(wire, ends)
        except (OSError, ValueError) as error:
            raise HostUnreadable(f"ovsdb-server at {self._path}: {error}") from error
        if answer.get("error") is not None:
            raise HostUnreadable(f"ovsdb-server at {self._path}: {answer['error']}")
        return answer["result"]


def _commit(api: OvsdbIdl, commands: tuple[Command, ...]) -> None:
    with api.transaction(check_error=True, log_errors=False) as transaction:
        for name, arguments in commands:
            transaction.add(getattr(api, name)(**arguments))


def _close(api: OvsdbIdl) -> None:
    api.ovsdb_connection.stop(timeout=0.2)


def _read_answer(wire: socket.socket, ends: float) -> Any:
    """The one JSON object that comes back; there is no frame around it, so it is read until it parses."""
    received = b""
    while True:
        wire.settimeout(max(0.001, ends - monotonic()))
        chunk = wire.recv(1 << 16)
        if not chunk:
            raise ConnectionError("connection closed within an answer")
        received += chunk
        if received.endswith(b"}"):
            try:
                return json.loads(received)
            except json.JSONDecodeError:
                continue


def _why(error: Exception) -> str:
    # ovsdbapp leaves the words of some of its errors out, and then asking for them is an AttributeError.
    return "no answer in time" if isinstance(error, OvsdbAppException) else str(error)


def elements(value: Any) -> list[Any]:
    """The members of a column: OVSDB writes a set of one as its member alone (RFC 7047, 5.1)."""
    return list(value[1]) if isinstance(value, list) and value[0] == "set" else [value]


def pairs(value: Any) -> dict[str, str]:
    """A map column as a dict."""
    return dict(value[1])
