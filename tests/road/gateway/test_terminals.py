"""End-to-end tests of the tickets of terminals, with an API process, a gateway process, and a simulated node.

The SSH port of a simulated slice returns its input, so that no login succeeds: a ticket that is accepted leads to a
session that ends with `ssh_login_failed`. `tests/faults/lab/test_terminals.py` uses terminals of real guests.
"""

import json
import socket
import struct
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import httpx
import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect

from control_plane.ssh_gateway.limits import MOST_OF_SOURCE
from tests.api.access.principals import issue
from tests.api.api_process import ApiProcess, api_process
from tests.road.conftest import Site
from tests.servers.plane import ADMIN_KEY, RunningPlane, free_port
from tests.servers.ssh_gateway import Gateway, gateway_process
from tests.waiting import until

PAGE: Final = "https://cloud.example.com"


class Terminals:
    """Requests about the browser terminals of one active allocation."""

    def __init__(self, site: Site, plane: RunningPlane, gateway: Gateway, **fields: object) -> None:
        self.site, self.plane, self.gateway = site, plane, gateway
        self.allocation = site.create(**{"gateway_access": True, **fields})
        site.await_state(self.allocation, "active")

    def request(self, key: str = ADMIN_KEY, **fields: object) -> httpx.Response:
        with self.plane.client(Authorization=f"Bearer {key}") as client:
            path = f"/allocations/{self.allocation}/terminal-sessions"
            return client.post(path, json={"origin": PAGE, **fields})

    def ticket(self, key: str = ADMIN_KEY) -> dict[str, Any]:
        answer = self.request(key)
        assert answer.status_code == 201, answer.text
        made: dict[str, Any] = answer.json()
        return made

    @contextmanager
    def socket(self, url: str, origin: str | None = PAGE, **headers: str) -> Iterator[ClientConnection]:
        given = headers if origin is None else {"Origin": origin, **headers}
        with connect(url, additional_headers=given, compression=None) as socket:
            yield socket

    def answer(self, ticket: dict[str, Any], origin: str | None = PAGE) -> dict[str, Any]:
        """Present a ticket to the gateway, and return the first message that the gateway sends."""
        with self.socket(ticket["url"], origin) as socket:
            # The gateway may refuse the connection before it gets a ticket.
            with suppress(ConnectionClosed):
                socket.send(json.dumps({"ticket": ticket["ticket"]}))
            return received(socket)

    def refusal(self, ticket: dict[str, Any], origin: str | None = PAGE) -> str:
        """Present a ticket that is refused, and return the code of the refusal."""
        found = self.answer(ticket, origin)
        assert found["state"] == "refused", found
        [reason] = found["reasons"]
        return str(reason["code"])

    def events(self, console: str) -> list[tuple[str, str, str]]:
        """Return type, reason code and actor of each event of a session."""
        query = "select type, (data::jsonb)->'reason'->>'code', actor from ledger.event where stream_id = %(s)s order by version"
        return [
            (kind, code or "", actor) for kind, code, actor in self.plane.rows(query, s=f"console-{console}")
        ]


def received(socket: ClientConnection) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(socket.recv(timeout=20))
    return found


@pytest.fixture
def gateway(site: Site, tmp_path: Path) -> Iterator[Gateway]:
    listen = {"SLICEPLANE_TERMINAL_LISTEN": f"127.0.0.1:{free_port()}"}
    with gateway_process(site.plane, tmp_path, **listen) as made:
        yield made


@pytest.fixture
def api(site: Site, gateway: Gateway, tmp_path: Path) -> Iterator[ApiProcess]:
    address = f"ws://{gateway.child.environment['SLICEPLANE_TERMINAL_LISTEN']}"
    with api_process(site.plane, tmp_path / "api.log", SLICEPLANE_TERMINAL_ADDRESS=address) as made:
        yield made


@pytest.fixture
def terminals(site: Site, api: ApiProcess, gateway: Gateway) -> Terminals:
    return Terminals(site, api.plane, gateway)


def test_terminal_ticket_is_refused_and_recorded_unless_it_is_used_once_by_the_page_that_requested_it(
    terminals: Terminals,
) -> None:
    ticket, other = terminals.ticket(), terminals.ticket()
    assert terminals.refusal({**ticket, "ticket": other["ticket"]}) == "ticket_wrong"
    assert terminals.refusal(ticket, "https://evil.example.com") == "ticket_of_other_origin"
    assert terminals.refusal(ticket, None) == "ticket_of_other_origin"
    ended = terminals.answer(ticket)
    assert (ended["state"], ended["reason"]["code"]) == ("ended", "ssh_login_failed"), ended
    unknown = terminals.answer({**ticket, "url": ticket["url"].replace(ticket["id"], "con-" + "0" * 26)})
    assert unknown["reasons"][0]["code"] == "unknown_console"
    caller, system = ticket["actor"], "system:ssh-gateway"
    assert terminals.events(ticket["id"]) == [
        ("console.requested", "", caller),
        ("console.ticket_refused", "ticket_wrong", system),
        ("console.ticket_refused", "ticket_of_other_origin", system),
        ("console.ticket_refused", "ticket_of_other_origin", system),
        ("console.connected", "", caller),
        ("console.disconnected", "ssh_login_failed", caller),
    ]


def test_ticket_of_a_terminal_is_refused_after_it_was_used_or_expired_and_after_its_credential_or_slice_ended(
    terminals: Terminals,
) -> None:
    plane = terminals.plane
    used, expired, late = (terminals.ticket() for _ in range(3))
    key = issue(plane, "short", projects=["default"])
    of_key = terminals.ticket(key.secret)
    with terminals.socket(used["url"]) as socket:
        socket.send(json.dumps({"ticket": used["ticket"]}))
        assert terminals.refusal(used) == "ticket_used"
        assert received(socket)["state"] == "ended"
    query = "update work.console set ticket_expires_at = now() where console_id = %(id)s returning 1"
    plane.rows(query, id=expired["id"])
    assert terminals.refusal(expired) == "ticket_expired"
    with plane.client() as client:
        assert client.post(f"/keys/{key.id}/revoke", json={"reason": "test"}).is_success
        assert terminals.refusal(of_key) == "credential_ended"
        assert client.delete(f"/allocations/{terminals.allocation}").is_success
    assert terminals.refusal(late) == "slice_not_on_node"
    assert [terminals.events(each["id"])[-1][:2] for each in (expired, of_key, late)] == [
        ("console.ticket_refused", "ticket_expired"),
        ("console.ticket_refused", "credential_ended"),
        ("console.ticket_refused", "slice_not_on_node"),
    ]


def test_terminal_ticket_is_refused_by_the_api_and_console_ticket_is_refused_by_the_gateway(
    terminals: Terminals,
) -> None:
    with terminals.plane.client() as client:
        path = f"/allocations/{terminals.allocation}/console-sessions"
        console = client.post(path, json={"origin": PAGE}).json()
    terminal = terminals.ticket()
    gateway = terminal["url"].rpartition("/")[0]
    assert terminals.refusal({**console, "url": f"{gateway}/{console['id']}"}) == "ticket_of_other_caller"
    url = f"{terminals.plane.url.replace('http', 'ws', 1)}/v1/console-sessions/{terminal['id']}/stream"
    with terminals.socket(url, Authorization=f"Bearer {ADMIN_KEY}") as socket:
        socket.send(json.dumps({"ticket": terminal["ticket"]}))
        assert received(socket)["reasons"][0]["code"] == "ticket_of_other_caller"


def test_only_callers_that_may_change_the_allocation_can_request_a_terminal(
    terminals: Terminals,
) -> None:
    plane = terminals.plane
    with plane.client() as client:
        assert client.post("/projects", json={"id": "other"}).is_success
    caller = issue(plane, "caller", projects=["default"]).secret
    assert terminals.request(caller).status_code == httpx.codes.CREATED
    other = issue(plane, "other", projects=["other"]).secret
    assert terminals.request(other).status_code == httpx.codes.NOT_FOUND
    reader = issue(plane, "reader", "auditor", projects=["default"]).secret
    assert terminals.request(reader).status_code == httpx.codes.FORBIDDEN


def test_terminal_of_an_allocation_without_gateway_access_or_of_a_wrong_slot_is_refused(
    site: Site, api: ApiProcess, gateway: Gateway
) -> None:
    closed = Terminals(site, api.plane, gateway, gateway_access=False)
    assert [each["code"] for each in closed.request().json()["reasons"]] == ["no_gateway_access"]
    own = Terminals(site, api.plane, gateway)
    assert [each["code"] for each in own.request(slot=1).json()["reasons"]] == ["unknown_slot_index"]
    assert own.request(origin="null").status_code == httpx.codes.UNPROCESSABLE_ENTITY


def test_deployment_without_a_terminal_address_refuses_terminal_requests_and_shows_no_address(
    site: Site, tmp_path: Path
) -> None:
    allocation = site.create(gateway_access=True)
    site.await_state(allocation, "active")
    with api_process(site.plane, tmp_path / "api.log") as api, api.plane.client() as client:
        shown = client.get(f"/allocations/{allocation}").json()
        assert (shown["gateway_access"], shown["terminal_address"]) == (True, None)
        answer = client.post(f"/allocations/{allocation}/terminal-sessions", json={"origin": PAGE})
    assert [each["code"] for each in answer.json()["reasons"]] == ["terminals_not_offered"]


@pytest.mark.parametrize(
    "message",
    [
        pytest.param("", id="empty"),
        pytest.param("no JSON", id="no JSON"),
        pytest.param("{}", id="no ticket"),
        pytest.param('{"ticket": 1}', id="number"),
        pytest.param(b"\0" * 16, id="bytes"),
        pytest.param("[" * 10_000, id="list"),
        pytest.param('{"ticket": "a", "other": ' + "[" * 50_000, id="nested too deep"),
        pytest.param(b'{"ticket": "\xff"}', id="not UTF-8"),
    ],
)
def test_terminal_connection_with_an_invalid_first_message_is_refused(
    terminals: Terminals, message: str | bytes
) -> None:
    with terminals.socket(terminals.ticket()["url"]) as socket:
        socket.send(message)
        assert received(socket)["reasons"][0]["code"] == "ticket_missing"


def test_tickets_for_terminals_count_as_ssh_connections_until_they_expire(terminals: Terminals) -> None:
    tickets = [terminals.ticket() for _ in range(8)]
    refused = terminals.request()
    assert refused.status_code == httpx.codes.CONFLICT
    assert [each["code"] for each in refused.json()["reasons"]] == ["too_many_ssh_connections"]
    query = "update work.console set ticket_expires_at = now() where console_id = %(id)s returning 1"
    terminals.plane.rows(query, id=tickets[0]["id"])
    assert terminals.request().status_code == httpx.codes.CREATED


def test_connections_without_a_handshake_are_limited_for_each_source_address(
    terminals: Terminals, gateway: Gateway
) -> None:
    host, _, port = gateway.child.environment["SLICEPLANE_TERMINAL_LISTEN"].rpartition(":")
    with ExitStack() as stack:
        for _ in range(MOST_OF_SOURCE):
            stack.enter_context(socket.create_connection((host, int(port))))
        # The gateway closes one more connection without reading from it.
        with socket.create_connection((host, int(port)), timeout=10) as refused:
            assert refused.recv(1) == b""
        other = stack.enter_context(
            socket.create_connection((host, int(port)), source_address=("127.0.0.2", 0), timeout=10)
        )
        other.sendall(b"GET / HTTP/1.1\r\n\r\n")
        assert other.recv(4) == b"HTTP"
    until(lambda: terminals.answer(terminals.ticket())["state"] == "ended", "connections are accepted again")


def test_connections_reset_immediately_leave_no_open_file_in_the_gateway(
    terminals: Terminals, gateway: Gateway
) -> None:
    descriptors = Path(f"/proc/{gateway.child.pid}/fd")
    before = len(list(descriptors.iterdir()))
    addresses = [gateway.child.environment["SLICEPLANE_TERMINAL_LISTEN"], f"127.0.0.1:{gateway.port}"]
    for address in 300 * addresses:
        host, _, port = address.rpartition(":")
        with socket.create_connection((host, int(port))) as connection:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    until(lambda: len(list(descriptors.iterdir())) <= before, "the connections are closed", 10)
    assert terminals.answer(terminals.ticket())["state"] == "ended"
    assert "Traceback" not in gateway.child.log.read_text()


@contextmanager
def limited_terminals(
    site: Site, api: ApiProcess, tmp_path: Path
) -> Iterator[tuple[Terminals, dict[str, Any]]]:
    """Provide a gateway that accepts two failed attempts per minute, and a ticket for it."""
    folder = tmp_path / "limited"
    folder.mkdir()
    address = f"127.0.0.1:{free_port()}"
    limited = {"SLICEPLANE_TERMINAL_LISTEN": address, "SLICEPLANE_UNAUTHENTICATED_PER_MINUTE": "2"}
    with gateway_process(site.plane, folder, **limited) as gateway:
        terminals = Terminals(site, api.plane, gateway)
        ticket = terminals.ticket()
        yield terminals, {**ticket, "url": f"ws://{address}/terminals/{ticket['id']}"}


def test_websocket_violation_before_the_ticket_counts_as_a_failed_attempt(
    site: Site, api: ApiProcess, tmp_path: Path
) -> None:
    with limited_terminals(site, api, tmp_path) as (terminals, ticket):
        for text in (b"\xff", b"a" * 100_000):
            with terminals.socket(ticket["url"]) as opened:
                opened.send(text, text=True)
                with pytest.raises(ConnectionClosed):
                    opened.recv(timeout=20)
        # The client may notice the end first.
        until(
            lambda: (
                terminals.gateway.child.log.read_text().count(
                    "terminal_connection_closed_before_its_ticket_arrived"
                )
                == 2
            ),
            "the gateway has noticed both ends",
        )
        assert terminals.refusal(ticket) == "too_many_failed_attempts"


def test_terminal_listener_of_the_gateway_refuses_requests_for_other_paths(terminals: Terminals) -> None:
    address = terminals.ticket()["url"].partition("/terminals/")[0]
    for path in ("", "/terminals/x", "/v1/allocations"):
        with pytest.raises(InvalidStatus) as refused, terminals.socket(f"{address}{path}"):
            pass
        assert refused.value.response.status_code == httpx.codes.NOT_FOUND


def test_address_with_too_many_refused_terminal_tickets_in_a_minute_is_refused_also_with_a_valid_ticket(
    site: Site, api: ApiProcess, tmp_path: Path
) -> None:
    with limited_terminals(site, api, tmp_path) as (terminals, ticket):
        wrong = {**ticket, "ticket": "guessed"}
        codes = [terminals.refusal(wrong) for _ in range(3)]
        assert codes == ["ticket_wrong", "ticket_wrong", "too_many_failed_attempts"]
        assert terminals.refusal(ticket) == "too_many_failed_attempts"
        until(lambda: len(terminals.events(ticket["id"])) == 3, "two refusals are recorded")
