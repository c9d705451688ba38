"""End-to-end tests of console sessions, with a control plane and an agent with a simulated host."""

import json
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import httpx
import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import ClientConnection, connect

from tests.api.access.principals import issue
from tests.api.api_process import api_process
from tests.contract.machines.viewer import Viewer
from tests.road.conftest import Site
from tests.servers.plane import ADMIN_KEY, RunningPlane
from tests.waiting import until

PAGE: Final = "https://cloud.example.com"


class Consoles:
    """Requests about console sessions of one active allocation."""

    def __init__(self, site: Site, **fields: Any) -> None:
        self.fields = fields
        """Fields of the request for a session."""
        self.site, self.plane = site, site.plane
        self.allocation = site.create()
        site.await_state(self.allocation, "active")

    def request(self, key: str = ADMIN_KEY, origin: str | None = None, **fields: Any) -> httpx.Response:
        body = {"origin": origin, **self.fields, **fields}
        with self.plane.client(Authorization=f"Bearer {key}") as client:
            return client.post(f"/allocations/{self.allocation}/console-sessions", json=body)

    def ticket(self, origin: str | None = None, **fields: Any) -> dict[str, Any]:
        answer = self.request(origin=origin, **fields)
        assert answer.status_code == 201, answer.text
        made: dict[str, Any] = answer.json()
        return made

    @contextmanager
    def socket(
        self, ticket: dict[str, Any], key: str = ADMIN_KEY, origin: str | None = None, url: str | None = None
    ) -> Iterator[ClientConnection]:
        """Present a ticket to the API at `url`, by default that of the control plane."""
        url = f"{(url or self.plane.url).replace('http', 'ws', 1)}{ticket['path']}"
        headers = {"Authorization": f"Bearer {key}", **({} if origin is None else {"Origin": origin})}
        with connect(url, additional_headers=headers, compression=None) as socket:
            socket.send(json.dumps({"ticket": ticket["ticket"]}))
            yield socket

    @contextmanager
    def session(self) -> Iterator[ClientConnection]:
        """Provide the WebSocket of a connected session."""
        with self.socket(self.ticket()) as socket:
            assert first(socket) == {"state": "connected"}
            yield socket

    def codes(self, ticket: dict[str, Any], key: str = ADMIN_KEY, origin: str | None = None) -> list[str]:
        """Present a ticket that is refused, and return the codes of the refusal."""
        with self.socket(ticket, key, origin) as socket:
            found = first(socket)
        assert found["state"] == "refused", found
        return [each["code"] for each in found["reasons"]]

    def events(self, console: str) -> list[tuple[str, str]]:
        """Return types and reason codes of a session's events."""
        query = "select type, (data::jsonb)->'reason'->>'code' from ledger.event where stream_id = %(s)s order by version"
        return [(kind, code or "") for kind, code in self.plane.rows(query, s=f"console-{console}")]

    def causes(self, console: str) -> set[tuple[str, str]]:
        """Return the projects and correlation ids of a session's events."""
        query = "select project, correlation_id::text from ledger.event where stream_id = %(s)s"
        return {*self.plane.rows(query, s=f"console-{console}")}

    def cause_of_allocation(self) -> tuple[str, str]:
        """Return the project and the correlation id with which the allocation was requested."""
        query = "select project, correlation_id::text from ledger.event where type = 'allocation.requested'"
        [(project, correlation)] = self.plane.rows(query)
        return project, correlation

    def open(self) -> list[dict[str, Any]]:
        with self.plane.client() as client:
            items: list[dict[str, Any]] = client.get("/console-sessions").json()["items"]
        return items

    def end_of(self, socket: ClientConnection) -> str:
        """Wait for the end of a session, and return the code of its reason."""
        while isinstance(message := socket.recv(timeout=10), bytes):
            pass
        code: str = json.loads(message)["reason"]["code"]
        return code


def first(socket: ClientConnection) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(socket.recv(timeout=20))
    return found


def output(socket: ClientConnection) -> bytes:
    message = socket.recv(timeout=10)
    assert isinstance(message, bytes), message
    return message


def read_until(socket: ClientConnection, text: bytes) -> bytes:
    found = b""
    while text not in found:
        found += output(socket)
    return found


@pytest.fixture
def consoles(site: Site) -> Consoles:
    return Consoles(site)


@pytest.fixture
def displays(site: Site) -> Consoles:
    """Requests about sessions on the display of an active allocation."""
    return Consoles(site, kind="graphics")


class SocketDisplay:
    """The display at the other end of the WebSocket of a connected session."""

    def __init__(self, socket: ClientConnection) -> None:
        self._socket = socket

    def read(self) -> bytes:
        message = self._socket.recv(timeout=20)
        if isinstance(message, bytes):
            return message
        print(f"the session has ended: {message}")
        return b""

    def write(self, data: bytes) -> None:
        self._socket.send(data)

    def close(self) -> None:
        self._socket.close()


def test_caller_with_a_ticket_sees_and_controls_the_display_and_each_step_is_an_event(
    displays: Consoles,
) -> None:
    ticket = displays.ticket()
    assert ticket["kind"] == "graphics"
    with displays.socket(ticket) as socket:
        assert first(socket) == {"state": "connected"}
        viewer = Viewer(SocketDisplay(socket))
        size = viewer.begin()
        before = viewer.pixels(*size)
        viewer.press("a")
        assert viewer.pixels(*size) != before
    until(lambda: displays.open() == [], "the session is closed")
    kinds = [kind for kind, _ in displays.events(ticket["id"])]
    assert kinds == ["console.requested", "console.connected", "console.disconnected"]


def test_second_session_on_a_display_is_refused_unless_it_is_requested_as_shared(displays: Consoles) -> None:
    with displays.session() as one:
        viewer = Viewer(SocketDisplay(one))
        size = viewer.begin()
        with displays.socket(displays.ticket()) as refused:
            ended = first(refused)
            assert ended["reason"]["code"] == "console_in_use"
            assert "open it as shared" in ended["reason"]["message"]
        with displays.socket(displays.ticket(shared=True)) as other:
            assert first(other) == {"state": "connected"}
            second = Viewer(SocketDisplay(other))
            assert second.pixels(*second.begin()) == viewer.pixels(*size)
        # The serial port is a console of its own.
        with displays.socket(displays.ticket(kind="serial")) as serial:
            assert first(serial) == {"state": "connected"}
    until(lambda: displays.open() == [], "the sessions are closed")
    with displays.session():
        pass


def test_shared_serial_console_and_unknown_kind_of_console_are_refused(consoles: Consoles) -> None:
    refused = consoles.request(shared=True)
    assert (refused.status_code, refused.json()["reasons"][0]["code"]) == (422, "console_not_shareable")
    assert consoles.request(kind="sound").status_code == 422


@pytest.mark.parametrize(
    "sent",
    [b"GET / HTTP/1.1\r\n", b"RFB 003.008\n\1\1\x09", bytes(200_000)],
    ids=["http", "message", "zeros"],
)
def test_viewer_that_does_not_use_rfb_ends_its_own_session_only(displays: Consoles, sent: bytes) -> None:
    with displays.session() as good, displays.socket(displays.ticket(shared=True)) as bad:
        assert first(bad) == {"state": "connected"}
        for start in range(0, len(sent), 16_000):
            bad.send(sent[start : start + 16_000])
        assert displays.end_of(bad) == "invalid_message"
        viewer = Viewer(SocketDisplay(good))
        assert viewer.pixels(*viewer.begin())


def test_caller_with_a_ticket_reads_and_writes_the_serial_console_and_each_step_is_an_event(
    consoles: Consoles,
) -> None:
    ticket = consoles.ticket()
    with consoles.socket(ticket) as socket:
        assert first(socket) == {"state": "connected"}
        read_until(socket, b"login: ")
        socket.send(b"root\r")
        read_until(socket, b"root\r\n")
        [listed] = consoles.open()
        assert (listed["id"], listed["state"]) == (ticket["id"], "connected")
    until(lambda: consoles.open() == [], "the session is closed")
    assert consoles.events(ticket["id"]) == [
        ("console.requested", ""),
        ("console.connected", ""),
        ("console.disconnected", "closed_by_caller"),
    ]


def test_console_ticket_is_refused_and_recorded_if_it_is_used_again_or_by_another_caller_or_from_another_origin(
    consoles: Consoles,
) -> None:
    other = issue(consoles.plane, "other", "admin").secret
    ticket = consoles.ticket(origin=PAGE)
    assert consoles.codes(ticket, other, PAGE) == ["ticket_of_other_caller"]
    assert consoles.codes(ticket) == ["ticket_of_other_origin"]
    assert consoles.codes(ticket, origin="https://evil.example.com") == ["ticket_of_other_origin"]
    assert consoles.codes({**ticket, "ticket": "guessed"}, origin=PAGE) == ["ticket_wrong"]
    with consoles.socket(ticket, origin=PAGE) as socket:
        assert first(socket) == {"state": "connected"}
        assert consoles.codes(ticket, origin=PAGE) == ["ticket_used"]
        socket.send(b"still open\r")
        read_until(socket, b"still open")
    until(lambda: consoles.open() == [], "the session is closed")
    assert [code for kind, code in consoles.events(ticket["id"]) if kind == "console.ticket_refused"] == [
        *("ticket_of_other_caller", "ticket_of_other_origin", "ticket_of_other_origin", "ticket_wrong"),
        "ticket_used",
    ]
    assert consoles.causes(ticket["id"]) == {consoles.cause_of_allocation()}


def test_wrong_use_of_a_ticket_for_a_display_is_refused_and_recorded(displays: Consoles) -> None:
    other = issue(displays.plane, "other", "admin").secret
    ticket, expired, late = displays.ticket(origin=PAGE), displays.ticket(), displays.ticket()
    assert displays.codes(ticket, other, PAGE) == ["ticket_of_other_caller"]
    assert displays.codes(ticket, origin="https://evil.example.com") == ["ticket_of_other_origin"]
    assert displays.codes({**ticket, "ticket": expired["ticket"]}, origin=PAGE) == ["ticket_wrong"]
    with displays.socket(ticket, origin=PAGE) as socket:
        assert first(socket) == {"state": "connected"}
        assert displays.codes(ticket, origin=PAGE) == ["ticket_used"]
        viewer = Viewer(SocketDisplay(socket))
        assert viewer.pixels(*viewer.begin())
    displays.plane.rows(
        "update work.console set ticket_expires_at = now() where console_id = %(id)s returning 1",
        id=expired["id"],
    )
    assert displays.codes(expired) == ["ticket_expired"]
    with displays.plane.client() as client:
        assert client.delete(f"/allocations/{displays.allocation}").is_success
    assert displays.codes(late) == ["slice_not_on_node"]
    refused = {
        each["id"]: [code for kind, code in displays.events(each["id"]) if kind == "console.ticket_refused"]
        for each in (ticket, expired, late)
    }
    assert refused == {
        ticket["id"]: ["ticket_of_other_caller", "ticket_of_other_origin", "ticket_wrong", "ticket_used"],
        expired["id"]: ["ticket_expired"],
        late["id"]: ["slice_not_on_node"],
    }


def test_console_ticket_that_is_used_without_a_websocket_is_lost_and_its_session_ends(
    consoles: Consoles,
) -> None:
    ticket = consoles.ticket()
    with consoles.plane.client() as client:
        used = client.post(f"/console-sessions/{ticket['id']}/connect", json={"ticket": ticket["ticket"]})
        assert used.status_code == 200, used.text
    assert consoles.codes(ticket) == ["ticket_used"]
    with consoles.session() as other:
        read_until(other, b"login: ")
    consoles.plane.rows(
        "update work.console set seen_at = seen_at - interval '1 minute' where console_id = %(id)s returning 1",
        id=ticket["id"],
    )
    until(lambda: len(consoles.events(ticket["id"])) == 3, "the end is recorded", 20)
    assert consoles.events(ticket["id"])[-1] == ("console.failed", "api_process_ended")


def test_console_ticket_is_refused_and_recorded_after_its_expiry_or_the_release_of_its_allocation(
    consoles: Consoles,
) -> None:
    expired, late = consoles.ticket(), consoles.ticket()
    consoles.plane.rows(
        "update work.console set ticket_expires_at = now() where console_id = %(id)s returning 1",
        id=expired["id"],
    )
    assert consoles.codes(expired) == ["ticket_expired"]
    with consoles.plane.client() as client:
        assert client.delete(f"/allocations/{consoles.allocation}").is_success
    assert consoles.codes(late) == ["slice_not_on_node"]
    assert consoles.request().status_code == 409
    assert consoles.events(expired["id"])[-1] == ("console.ticket_refused", "ticket_expired")
    assert consoles.events(late["id"])[-1] == ("console.ticket_refused", "slice_not_on_node")


def test_caller_without_the_role_admin_gets_no_console_ticket_and_cannot_use_the_ticket_of_an_admin(
    consoles: Consoles,
) -> None:
    caller = issue(consoles.plane, "caller", projects=["default"]).secret
    assert consoles.request(caller).status_code == 403
    assert consoles.codes(consoles.ticket(), caller) == ["role_missing"]


def test_console_session_is_cut_after_the_release_of_its_allocation(consoles: Consoles) -> None:
    with consoles.session() as socket:
        with consoles.plane.client() as client:
            assert client.delete(f"/allocations/{consoles.allocation}").is_success
        assert consoles.end_of(socket) in ("slice_not_on_node", "closed_by_node")
    until(lambda: consoles.open() == [], "the session is closed", 5)


def test_console_session_is_cut_after_the_revocation_of_its_key_or_the_end_of_its_login(
    consoles: Consoles,
) -> None:
    key = issue(consoles.plane, "short", "admin")
    with consoles.plane.client(Authorization=f"Bearer {key.secret}") as client:
        login = client.post("/sessions", json={"label": "test"}).json()
    for kind, secret, path in (
        # Of different kinds: the node may not have closed the console of the first session yet.
        ("serial", login["secret"], f"/sessions/{login['id']}/end"),
        ("graphics", key.secret, f"/keys/{key.id}/revoke"),
    ):
        ticket = consoles.request(secret, kind=kind).json()
        with consoles.socket(ticket, secret) as socket:
            assert first(socket) == {"state": "connected"}
            with consoles.plane.client() as client:
                ended = client.post(path, json={"reason": "test"})
                assert ended.is_success, ended.text
            assert consoles.end_of(socket) == "credential_ended"


def test_console_session_that_an_admin_cuts_ends_with_the_reason_of_the_admin(consoles: Consoles) -> None:
    with consoles.session() as socket:
        [listed] = consoles.open()
        with consoles.plane.client() as client:
            cut = client.post(f"/console-sessions/{listed['id']}/cut", json={"reason": "audit"})
            assert cut.status_code == 202, cut.text
        assert consoles.end_of(socket) == "cut"
    assert consoles.events(listed["id"])[-1] == ("console.disconnected", "cut")


def test_second_session_on_a_console_fails_and_the_first_session_continues(consoles: Consoles) -> None:
    with consoles.session() as socket:
        second = consoles.ticket()
        with consoles.socket(second) as other:
            ended = first(other)
        assert (ended["state"], ended["reason"]["code"]) == ("ended", "console_in_use")
        socket.send(b"first\r")
        read_until(socket, b"first")
    assert consoles.events(second["id"])[-1] == ("console.failed", "console_in_use")


def test_console_sessions_end_within_five_seconds_after_their_agent_is_killed(consoles: Consoles) -> None:
    with consoles.session() as socket:
        consoles.site.node.agent.send(signal.SIGKILL)
        assert consoles.end_of(socket) == "closed_by_node"
    assert consoles.open() == []


def test_console_session_over_two_api_processes_ends_when_the_process_of_its_caller_is_killed(
    consoles: Consoles, tmp_path: Path
) -> None:
    # It takes 15 s until another process records the end.
    with api_process(consoles.plane, tmp_path / "api.log") as other:
        ticket = consoles.ticket()
        with consoles.socket(ticket, url=other.plane.url) as socket:
            assert first(socket) == {"state": "connected"}
            socket.send(b"through both\r")
            read_until(socket, b"through both")
            other.kill()
    # The node has closed the console before that: it is free for another session.
    until(lambda: connects(consoles), "the console is free", 10)
    until(lambda: len(consoles.events(ticket["id"])) == 3, "the end is recorded", 30)
    assert consoles.events(ticket["id"])[-1] == ("console.disconnected", "api_process_ended")
    until(lambda: consoles.open() == [], "no session is open")


def connects(consoles: Consoles) -> bool:
    with consoles.socket(consoles.ticket()) as socket:
        return str(first(socket)["state"]) == "connected"


def test_console_session_fails_after_ten_seconds_if_no_agent_runs(consoles: Consoles) -> None:
    consoles.site.node.agent.stop()
    ticket = consoles.ticket()
    with consoles.socket(ticket) as socket:
        assert first(socket)["reason"]["code"] == "node_not_responding"
    assert consoles.events(ticket["id"])[-1] == ("console.failed", "node_not_responding")


def test_bytes_of_a_long_console_session_arrive_complete_and_in_their_order(consoles: Consoles) -> None:
    sent = b"".join(b"%08d" % number for number in range(100_000))
    with consoles.session() as socket:
        read_until(socket, b"login: ")
        received = b""
        for start in range(0, len(sent), 8192):
            socket.send(sent[start : start + 8192])
            if start % (8192 * 16) == 0:
                received += output(socket)
        while len(received) < len(sent):
            received += output(socket)
    assert received == sent


def test_handshake_of_a_node_for_a_stream_that_was_not_requested_from_it_is_refused(
    emptied_plane: RunningPlane,
) -> None:
    url = (
        f"{emptied_plane.url.replace('http', 'ws', 1)}/v1/agent/streams/7d1f6f0e-52a1-4f0c-9f43-5d7c0c1b2a3f"
    )
    with pytest.raises(InvalidStatus, match="403"):
        connect(url, additional_headers={"Authorization": "Bearer n1:wrong"})
