"""Access to Open vSwitch's database server: reads directly over its protocol (RFC 7047), changes through ovsdbapp.

ovsdbapp keeps a replica, which is suitable for changing the database but not for reading it: the replica lags behind,
and it returns outdated content while the server hangs. A proof of absence requires an answer of the server itself, so
every read is a `select` on a short-lived connection. The connection of the replica opens at the first change and is
kept.

A change that misses its deadline may still be executed later, because its transaction is pending in the replica's
thread. The connection is then closed, and the next survey observes the outcome.
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

from node_agent.drivers.deadlines import DeadlineExceeded, Deadlines
from node_agent.host.slices import HostRefused, HostUnreadable

DATABASE: Final = "Open_vSwitch"
TABLES: Final = ("Open_vSwitch", "Bridge", "Port", "Interface")
FOREIGN_COLUMNS: Final = {
    "controller": ("Controller", "target"),
    "mirrors": ("Mirror", "name"),
    "sflow": ("sFlow", "targets"),
    "netflow": ("NetFlow", "targets"),
    "ipfix": ("IPFIX", "targets"),
}
"""Columns of a bridge that refer to receivers of its frames or controllers of its flows.

Each maps to the referenced table and the column with the display name (ovs-vswitchd.conf.db(5)).
"""
TIMEOUT_MESSAGE: Final = "OVS transaction timed out"
"""Message of ovsdbapp for a transaction that it sent repeatedly without an answer."""

Row = Mapping[str, Any]
Command = tuple[str, Mapping[str, Any]]

T = TypeVar("T")


class Ovsdb:
    """A connection to the OVSDB server.

    `path` is its unix socket; `deadline` is in seconds and applies to each call.
    """

    def __init__(self, path: Path, deadline: float = 5.0) -> None:
        self._path, self._deadline = path, deadline
        self._deadlines = Deadlines()
        self._lock = threading.Lock()
        self._api: OvsdbIdl | None = None

    def close(self) -> None:
        with self._lock:
            self._disconnect()

    def select(self, columns: Mapping[str, Sequence[str]]) -> Mapping[str, list[Row]]:
        """Return all rows of the given OVSDB tables, read in one transaction. Raises `HostUnreadable`."""
        operations = [
            {"op": "select", "table": table, "where": [], "columns": list(names)}
            for table, names in columns.items()
        ]
        answers = self._call("transact", [DATABASE, *operations])
        if not all("rows" in answer for answer in answers):
            raise HostUnreadable(f"ovsdb-server refused a query: {answers}")
        return {table: answer["rows"] for table, answer in zip(columns, answers, strict=True)}

    def change(self, operation: str, *commands: Command) -> None:
        """Run ovsdbapp commands, named with their arguments, in one transaction, and wait for ovs-vswitchd.

        Raises `HostRefused` if the server refuses the change, and `HostUnreadable` if it does not answer. The message
        of both errors contains `operation`.
        """
        with self._lock:
            abandoned = threading.Event()
            ends = monotonic() + self._deadline
            try:
                if self._api is None:
                    self._api = self._within(ends, lambda: self._connect(abandoned))
                api = self._api
                self._within(ends, lambda: _commit(api, commands))
            except (
                DeadlineExceeded,
                OSError,
                HostUnreadable,
                TimeoutException,
                OvsdbConnectionUnavailable,
            ) as error:
                abandoned.set()
                self._disconnect()
                raise HostUnreadable(f"cannot {operation} in Open vSwitch: {_why(error)}") from error
            except RuntimeError as error:
                # ovsdbapp raises RuntimeError for a refusal by the server and for a row that it does not find; the
                # connection remains usable. It also raises RuntimeError for a connection that was lost and did not
                # recover in time.
                error_type = HostUnreadable if str(error) == TIMEOUT_MESSAGE else HostRefused
                raise error_type(f"cannot {operation} in Open vSwitch: {error}") from error

    def _within(self, ends: float, call: Callable[[], T]) -> T:
        return self._deadlines.within(max(0.0, ends - monotonic()), call)

    def _connect(self, abandoned: threading.Event) -> OvsdbIdl:
        helper = idlutils.create_schema_helper(self._call("get_schema", [DATABASE]))
        for table in TABLES:
            helper.register_table(table)
        idl = connection.OvsdbIdl(f"unix:{self._path}", helper)

        class Api(OvsdbIdl):  # type: ignore[misc]  # ovsdbapp has no types
            # ovsdbapp stores its connection in the class, once per process; this subclass has one for each server.
            _ovsdb_connection = None

        api = Api(connection.Connection(idl, self._deadline))
        if abandoned.is_set():
            # The caller has timed out, and another call may be connecting.
            _close(api)
            raise DeadlineExceeded("the connection to ovsdb-server opened only after the deadline")
        return api

    def _disconnect(self) -> None:
        api, self._api = self._api, None
        if api is not None:
            _close(api)

    def _call(self, method: str, params: list[Any]) -> Any:
        ends = monotonic() + self._deadline
        request = {"method": method, "params": params, "id": 0}
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as wire:
                wire.settimeout(self._deadline)
                wire.connect(str(self._path))
                wire.sendall(json.dumps(request).encode())
                answer = _read_answer(wire, ends)
        except (OSError, ValueError) as error:
            raise HostUnreadable(f"cannot query ovsdb-server at {self._path}: {error}") from error
        if answer.get("error") is not None:
            raise HostUnreadable(f"ovsdb-server at {self._path} refused a query: {answer['error']}")
        return answer["result"]


def _commit(api: OvsdbIdl, commands: tuple[Command, ...]) -> None:
    with api.transaction(check_error=True, log_errors=False) as transaction:
        for name, arguments in commands:
            transaction.add(getattr(api, name)(**arguments))


def _close(api: OvsdbIdl) -> None:
    api.ovsdb_connection.stop(timeout=0.2)


def _read_answer(wire: socket.socket, ends: float) -> Any:
    """Read one JSON object from the OVSDB server. The protocol has no framing, so read until the data can be parsed."""
    received = b""
    while True:
        wire.settimeout(max(0.001, ends - monotonic()))
        chunk = wire.recv(1 << 16)
        if not chunk:
            raise ConnectionError("ovsdb-server closed the connection before the end of its reply")
        received += chunk
        if received.endswith(b"}"):
            try:
                return json.loads(received)
            except json.JSONDecodeError:
                continue


def _why(error: Exception) -> str:
    # Some errors of ovsdbapp have no message, and converting them to text raises an AttributeError.
    return "ovsdb-server did not reply in time" if isinstance(error, OvsdbAppException) else str(error)


def elements(value: Any) -> list[Any]:
    """Return the members of an OVSDB set column. OVSDB encodes a one-member set as the member (RFC 7047, 5.1)."""
    return list(value[1]) if isinstance(value, list) and value[0] == "set" else [value]


def pairs(value: Any) -> dict[str, str]:
    """Convert the value of an OVSDB map column to a dict."""
    return dict(value[1])
