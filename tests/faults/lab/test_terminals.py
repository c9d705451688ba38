"""Terminals of a real guest, and how an open one ends (ING-6)."""

import json
import signal
import socket
import ssl
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import pytest
from websockets.exceptions import ConnectionClosed

from control_plane.client.web_socket import WebSocket
from control_plane.programs import SERVER, Program
from deploy.embedded.children import Child, installed_program
from tests.faults.programs import NODE, Lab
from tests.servers.plane import free_port
from tests.waiting import until

pytestmark = [pytest.mark.node, pytest.mark.slow, pytest.mark.timeout(300)]
PAGE: Final = "https://cloud.example.com"
SECONDS: Final = 30.0
CUT_SECONDS: Final = 5.0
_ATTEMPTS: Final = 3


class Shell:
    """An open terminal; the test keeps its output."""

    def __init__(self, socket: WebSocket) -> None:
        self._socket, self._output = socket, ""

    def type(self, text: str) -> None:
        self._socket.send(text.encode())

    def resize(self, columns: int, rows: int) -> None:
        self._socket.send(json.dumps({"columns": columns, "rows": rows}))

    def read_until(self, text: str) -> None:
        deadline = time.monotonic() + SECONDS
        while text not in self._output:
            message = self._socket.receive(deadline - time.monotonic())
            assert isinstance(message, bytes), message
            self._output += message.decode(errors="replace")
        self._output = self._output.partition(text)[2]

    def end(self, seconds: float = SECONDS, typed: str = "") -> str:
        """Wait for the end of the terminal, and return the code of its reason. `typed` is sent after each output."""
        deadline = time.monotonic() + seconds
        while isinstance(message := self._socket.receive(deadline - time.monotonic()), bytes):
            with suppress(ConnectionClosed):
                self._socket.send(typed.encode())
        code: str = json.loads(message)["reason"]["code"]
        return code


class Terminals:
    """The terminals of an allocation with one slice, which has no public address."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab
        self.allocation = lab.create(gateway_access=True)
        lab.await_state(self.allocation, "active")

    def ticket(self) -> dict[str, Any]:
        path = f"/allocations/{self.allocation}/terminal-sessions"
        made: dict[str, Any] = self.lab.call("POST", path, {"origin": PAGE})
        return made

    @contextmanager
    def shell(self, ticket: dict[str, Any]) -> Iterator[Shell]:
        """Present a ticket, and provide the terminal as soon as the shell has shown its prompt. If the node does not
        answer in time, because the machine is busy, a new ticket replaces the content of `ticket`.
        """
        for _ in range(_ATTEMPTS):
            with self._opened(ticket) as (answer, opened):
                if answer == {"state": "connected"}:
                    shell = Shell(opened)
                    shell.read_until("# ")
                    yield shell
                    return
            assert answer["reason"]["code"] == "node_not_responding", answer
            again, address = self.ticket(), ticket["url"].rpartition("/")[0]
            ticket.update(again, url=f"{address}/{again['id']}")
        raise AssertionError(f"the node did not answer in {_ATTEMPTS} attempts")

    @contextmanager
    def _opened(self, ticket: dict[str, Any]) -> Iterator[tuple[dict[str, Any], WebSocket]]:
        secure = ssl.create_default_context(cadata=self.lab.stack.certificates.ca.read_text())
        headers = {"Origin": PAGE}
        with WebSocket(ticket["url"], trusted=secure, headers=headers, seconds=SECONDS) as opened:
            opened.send(json.dumps({"ticket": ticket["ticket"], "columns": 100, "rows": 40}))
            yield json.loads(opened.receive(SECONDS)), opened

    def await_gateway(self) -> None:
        """Wait until the gateway accepts connections again, and the node is available."""
        address = urlsplit(self.ticket()["url"])

        def accepts() -> bool:
            self.lab.supervise()
            with suppress(OSError), socket.create_connection((address.hostname, address.port), timeout=1):
                return True
            return False

        until(accepts, "the gateway accepts connections", SECONDS)
        until(self.lab.is_alive, "the node is available", 60)

    def end_of(self, console: str) -> str:
        """Wait until the end of a session is recorded, and return the code of its reason."""

        def ends() -> list[str]:
            facts = self.lab.facts("console.disconnected")
            return [each["reason"]["code"] for each in facts if each["console_id"] == console]

        until(lambda: ends() != [], "the end is recorded", SECONDS)
        return ends()[0]


@pytest.fixture(scope="module")
def terminals(lab: Lab) -> Iterator[Terminals]:
    until(lab.is_ready, "the node is ready", 60)
    made = Terminals(lab)
    try:
        yield made
    finally:
        lab.release_all(made.allocation)


def test_shell_of_a_private_slice_gets_input_and_size_and_returns_long_output_in_order(
    terminals: Terminals,
) -> None:
    ticket = terminals.ticket()
    with terminals.shell(ticket) as shell:
        shell.type("stty size\n")
        shell.read_until("40 100")
        shell.resize(132, 50)
        shell.type("stty size\n")
        shell.read_until("50 132")
        shell.type("seq 1 20000; echo end-of-output\n")
        for each in (1, 7_777, 20_000):
            shell.read_until(f"\n{each}\r\n"[1:])
        shell.read_until("end-of-output")
        shell.type("exit 4\n")
        assert shell.end() == "shell_ended"
    assert terminals.end_of(ticket["id"]) == "shell_ended"


def cut(terminals: Terminals, ticket: dict[str, Any]) -> None:
    terminals.lab.call("POST", f"/console-sessions/{ticket['id']}/cut", {"reason": "test"})


def stop_gateway(terminals: Terminals, _ticket: dict[str, Any]) -> None:
    terminals.lab.signal(Program.SSH_GATEWAY, signal.SIGTERM)


def kill_agent(terminals: Terminals, _ticket: dict[str, Any]) -> None:
    terminals.lab.signal("agent", signal.SIGKILL)


@pytest.mark.parametrize(
    ("act", "code"),
    [(cut, "cut"), (stop_gateway, "gateway_stopped"), (kill_agent, "closed_by_node")],
)
def test_open_terminal_ends_with_a_reason_within_five_seconds_after_a_cut_or_the_end_of_its_gateway_or_agent(
    terminals: Terminals, act: Callable[[Terminals, dict[str, Any]], None], code: str
) -> None:
    ticket = terminals.ticket()
    with terminals.shell(ticket) as shell:
        act(terminals, ticket)
        assert shell.end(CUT_SECONDS) == code
    assert terminals.end_of(ticket["id"]) == code
    terminals.await_gateway()


def test_open_terminal_ends_within_five_seconds_after_the_credential_that_requested_it_was_revoked(
    terminals: Terminals,
) -> None:
    lab, admin = terminals.lab, terminals.lab.key
    key = lab.call("POST", "/keys", {"name": "short", "role": "caller", "projects": ["default"]})
    lab.key = key["key"]
    try:
        ticket = terminals.ticket()
    finally:
        lab.key = admin
    with terminals.shell(ticket) as shell:
        lab.call("POST", f"/keys/{key['id']}/revoke", {"reason": "test"})
        assert shell.end(CUT_SECONDS) == "credential_ended"
    assert terminals.end_of(ticket["id"]) == "credential_ended"


def test_end_of_a_terminal_is_recorded_if_its_gateway_is_killed(terminals: Terminals) -> None:
    ticket = terminals.ticket()
    with terminals.shell(ticket):
        terminals.lab.signal(Program.SSH_GATEWAY, signal.SIGKILL)
        assert terminals.end_of(ticket["id"]) == "gateway_process_ended"
    terminals.await_gateway()


def test_terminal_without_input_of_a_person_becomes_idle_while_the_shell_prints(
    terminals: Terminals, tmp_path: Path
) -> None:
    address, log = f"127.0.0.1:{free_port()}", tmp_path / "gateway.log"
    further = {
        "SLICEPLANE_TERMINAL_LISTEN": address,
        "SLICEPLANE_SSH_GATEWAY_LISTEN": f"127.0.0.1:{free_port()}",
        "SLICEPLANE_CONSOLE_IDLE_MINUTES": "0.05",
        "SLICEPLANE_CONSOLE_HOURS": "0.002",
    }
    environment = {**terminals.lab.stack.environment(), **further}
    gateway = Child("gateway", installed_program(SERVER, Program.SSH_GATEWAY), log, environment)
    try:
        gateway.start()
        until(lambda: "ssh_gateway_serving" in log.read_text(), "the gateway serves")
        codes = []
        for typed in ("", "x"):
            ticket = terminals.ticket()
            ticket["url"] = f"wss://{address}/terminals/{ticket['id']}"
            with terminals.shell(ticket) as shell:
                shell.type("while sleep 0.2; do echo tick; done\n")
                codes.append(shell.end(typed=typed))
        assert codes == ["idle", "too_long"]
    finally:
        gateway.stop()


def test_terminal_and_its_unused_tickets_end_with_the_release_of_the_allocation(lab: Lab) -> None:
    terminals = Terminals(lab)
    ticket = terminals.ticket()
    assert ticket["node_id"] == NODE
    with terminals.shell(ticket) as shell:
        lab.release(terminals.allocation)
        # The node removes the slice at the same time as the gateway notices the release.
        assert shell.end(CUT_SECONDS) in ("allocation_not_active", "slice_not_on_node", "closed_by_node")
    lab.release_all(terminals.allocation)
    assert lab.call("GET", "/console-sessions")["items"] == []
