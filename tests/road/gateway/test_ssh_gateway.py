"""End-to-end tests of the SSH gateway with OpenSSH as the client, and with an agent with a simulated host."""

import os
import re
import signal
from contextlib import suppress
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from tests.api.api_process import api_process
from tests.road.conftest import Site
from tests.road.test_console_limits import IDLE_SECONDS, LONG, LONGEST_SECONDS
from tests.servers.ssh_gateway import GREETING, Client, Gateway, KeyPair, gateway_process, key_pair
from tests.waiting import until


class Slices:
    """An active allocation with one SSH key, and the SSH gateway through which its slices are reached."""

    def __init__(self, site: Site, gateway: Gateway, folder: Path, count: int = 1) -> None:
        self.site, self.plane, self.gateway = site, site.plane, gateway
        self.key, self.other_key = key_pair(folder, "own"), key_pair(folder, "other")
        self.allocation = self.create(self.key, slot_count=count)

    def create(self, key: KeyPair, **fields: object) -> str:
        made = self.site.create(ssh_authorized_keys=[key.public], **fields)
        self.site.await_state(made, "active")
        return made

    def connection(self, to: str = "slice:22") -> Any:
        return self.gateway.connection(self.allocation, self.key, to)

    def open(self) -> list[dict[str, Any]]:
        with self.plane.client() as client:
            items: list[dict[str, Any]] = client.get("/console-sessions").json()["items"]
        return items

    def events(self) -> list[tuple[str, str]]:
        """Return the type and the reason code of each event about a console session, the oldest event first."""
        query = (
            "select type, (data::jsonb)->'reason'->>'code' from ledger.event"
            " where stream_id like 'console-%%' order by position"
        )
        return [(kind, code or "") for kind, code in self.plane.rows(query)]

    def await_end(self) -> str:
        """Wait until no session is open, and return the code of the last recorded reason."""
        until(lambda: self.open() == [], "the session is closed")
        return self.events()[-1][1]


@pytest.fixture
def slices(site: Site, gateway: Gateway, tmp_path: Path) -> Slices:
    return Slices(site, gateway, tmp_path)


def greeted(client: Client) -> Client:
    assert client.read(len(GREETING)) == GREETING, client.errors()
    return client


def test_client_with_a_key_of_the_allocation_reaches_the_ssh_port_of_its_slice_and_each_step_is_an_event(
    slices: Slices,
) -> None:
    with slices.connection() as client:
        greeted(client).echo(b"any bytes \0\xff")
        [listed] = slices.open()
        assert (listed["kind"], listed["state"], listed["allocation_id"]) == (
            "ssh",
            "connected",
            slices.allocation,
        )
        assert listed["actor"].startswith("ssh-key:SHA256:")
        client.close_input()
        assert client.errors() == ""
    assert slices.await_end() == "closed_by_caller"
    assert slices.events() == [
        ("console.requested", ""),
        ("console.connected", ""),
        ("console.disconnected", "closed_by_caller"),
    ]


def test_each_slice_of_an_allocation_has_a_host_name_of_its_own_at_the_ssh_gateway(
    site: Site, gateway: Gateway, tmp_path: Path
) -> None:
    slices = Slices(site, gateway, tmp_path, count=2)
    with slices.connection("slice-0:22") as first, slices.connection("slice-1:22") as second:
        greeted(first)
        greeted(second)
        assert {each["slot_id"] for each in slices.open()} == {"sim-a/0", "sim-a/1"}
    refused = slices.gateway.refusal(slices.allocation, slices.key, "-W", "slice-2:22", "127.0.0.1")
    assert "the allocation has no slot 2" in refused


@pytest.mark.parametrize(
    "words",
    [
        pytest.param(("127.0.0.1",), id="shell"),
        pytest.param(("127.0.0.1", "id"), id="command"),
        pytest.param(("-s", "127.0.0.1", "sftp"), id="subsystem"),
        pytest.param(("-t", "-A", "-X", "127.0.0.1"), id="terminal"),
        pytest.param(("-W", "slice:80", "127.0.0.1"), id="other port"),
        pytest.param(("-W", "127.0.0.1:22", "127.0.0.1"), id="gateway itself"),
        pytest.param(("-W", "10.100.0.1:22", "127.0.0.1"), id="other address"),
        pytest.param(("-W", "[::1]:22", "127.0.0.1"), id="IPv6 address"),
        pytest.param(("-W", "sim-a:22", "127.0.0.1"), id="node"),
        pytest.param(("-W", "slice-1.:22", "127.0.0.1"), id="similar name"),
        pytest.param(
            ("-o", "ExitOnForwardFailure=yes", "-N", "-R", "0:127.0.0.1:22", "127.0.0.1"), id="listener"
        ),
    ],
)
def test_request_for_anything_but_the_ssh_port_of_a_slice_is_refused_with_the_reason(
    slices: Slices, words: tuple[str, ...]
) -> None:
    errors = slices.gateway.refusal(slices.allocation, slices.key, *words)
    assert "refused: this gateway only leads to port 22 of `slice`" in errors or "-R" in words, errors
    assert "remote port forwarding failed" in errors or "-R" not in words, errors
    assert slices.events() == []


def test_client_is_refused_without_a_key_of_this_active_allocation(slices: Slices) -> None:
    other = slices.create(slices.other_key)

    def refused(user: str, key: KeyPair, *words: str) -> bool:
        errors = slices.gateway.refusal(user, key, *words, "-W", "slice:22", "127.0.0.1")
        return "Permission denied (publickey)" in errors

    assert refused(slices.allocation, slices.other_key)
    assert refused(other, slices.key)
    assert refused("alc-0000000000000000000000000z", slices.key)
    assert refused("root", slices.key)
    password = ("-o", "BatchMode=no", "-o", "PreferredAuthentications=password,keyboard-interactive")
    assert refused(slices.allocation, slices.key, *password)
    with slices.plane.client() as client:
        assert client.post(f"/allocations/{slices.allocation}/stop").is_success
        assert client.delete(f"/allocations/{other}").is_success
    assert refused(slices.allocation, slices.key)
    assert refused(other, slices.other_key)
    slices.site.await_state(slices.allocation, "stopped")
    assert refused(slices.allocation, slices.key)
    assert slices.events() == []


def test_address_with_too_many_failed_attempts_is_refused_also_with_a_valid_key(
    site: Site, tmp_path: Path
) -> None:
    with gateway_process(site.plane, tmp_path, SLICEPLANE_UNAUTHENTICATED_PER_MINUTE="2") as gateway:
        slices = Slices(site, gateway, tmp_path)
        to = ("-W", "slice:22", "127.0.0.1")
        assert "Permission denied" in gateway.refusal(slices.allocation, slices.other_key, *to)
        assert "too many failed attempts" in gateway.refusal(slices.allocation, slices.other_key, *to)
        assert "too many failed attempts; try again in" in gateway.refusal(slices.allocation, slices.key, *to)


def test_allocation_with_too_many_failed_attempts_accepts_no_key_from_any_address(
    site: Site, tmp_path: Path
) -> None:
    with gateway_process(site.plane, tmp_path, SLICEPLANE_UNAUTHENTICATED_PER_MINUTE="2") as gateway:
        slices = Slices(site, gateway, tmp_path)
        other = slices.create(slices.other_key)

        def refusal(source: int, key: KeyPair) -> str:
            to = ("-b", f"127.0.0.{source}", "-W", "slice:22", "127.0.0.1")
            return gateway.refusal(slices.allocation, key, *to)

        # One failed attempt is within the quota of each address.
        for source in (2, 3):
            refusal(source, slices.other_key)
        assert "too many failed attempts; try again in" in refusal(4, slices.key)
        words = ("-b", "127.0.0.4", "-W", "slice:22", "127.0.0.1")
        client = Client(gateway.command(other, slices.other_key, *words))
        try:
            greeted(client)
        finally:
            client.end()


def test_connection_beyond_the_quota_of_its_allocation_is_refused_and_not_recorded(
    site: Site, tmp_path: Path
) -> None:
    with gateway_process(site.plane, tmp_path, SLICEPLANE_REQUESTS_PER_MINUTE="1") as gateway:
        slices = Slices(site, gateway, tmp_path)
        with slices.connection() as client:
            greeted(client)
        to = ("-W", "slice:22", "127.0.0.1")
        refused = gateway.refusal(slices.allocation, slices.key, *to)
        assert re.search(
            "too many connections to the slices of the allocation; try again in [0-9]+ s", refused
        )
    slices.await_end()
    assert [kind for kind, _ in slices.events()] == [
        "console.requested",
        "console.connected",
        "console.disconnected",
    ]


def is_echoed(client: Client) -> bool:
    """Send a byte, and return whether the guest has echoed it; False if the connection has ended."""
    with suppress(BrokenPipeError):
        client.write(b"a")
        return client.read(1) == b"a"
    return False


@pytest.mark.parametrize("end", ["idle", "too_long"])
def test_ssh_connection_without_input_ends_as_idle_and_one_with_input_ends_at_its_maximum_duration(
    site: Site, tmp_path: Path, end: str
) -> None:
    # Of two limits, the one that the test expects is short enough to be reached.
    limits = {
        "SLICEPLANE_CONSOLE_IDLE_MINUTES": str(IDLE_SECONDS / 60),
        "SLICEPLANE_CONSOLE_HOURS": str((LONGEST_SECONDS if end == "too_long" else LONG) / 3600),
    }
    with gateway_process(site.plane, tmp_path, **limits) as gateway:
        slices = Slices(site, gateway, tmp_path)
        with slices.connection() as client:
            greeted(client)
            while end == "too_long" and is_echoed(client):
                continue
            shown = "no input for" if end == "idle" else "a session lasts at most"
            assert f"the session ended: {shown}" in client.errors()
    assert slices.await_end() == end


@pytest.mark.parametrize("action", ["release", "stop"])
def test_connection_is_cut_within_five_seconds_after_the_release_or_stop_of_its_allocation(
    slices: Slices, action: str
) -> None:
    agent = slices.site.node.agent
    with slices.connection() as client:
        greeted(client)
        # Otherwise the end of the guest would end the connection.
        agent.send(signal.SIGSTOP)
        try:
            with slices.plane.client() as api:
                if action == "release":
                    assert api.delete(f"/allocations/{slices.allocation}").is_success
                else:
                    assert api.post(f"/allocations/{slices.allocation}/stop").is_success
            assert f"allocation {slices.allocation} is no longer active" in client.errors(5.0)
        finally:
            agent.send(signal.SIGCONT)
    assert slices.await_end() == "allocation_not_active"


def test_ssh_connection_ends_when_the_machine_of_its_slice_ends(slices: Slices) -> None:
    with slices.connection() as client:
        greeted(client)
        with slices.plane.client() as api:
            assert api.delete(f"/allocations/{slices.allocation}").is_success
        client.errors(5.0)
    assert slices.await_end() in ("allocation_not_active", "closed_by_node")


def test_ssh_connection_cut_by_an_admin_ends_and_the_client_shows_the_reason_of_the_admin(
    slices: Slices,
) -> None:
    with slices.connection() as client:
        greeted(client)
        [listed] = slices.open()
        with slices.plane.client() as api:
            cut = api.post(f"/console-sessions/{listed['id']}/cut", json={"reason": "maintenance"})
            assert cut.status_code == 202, cut.text
        assert re.search("the session ended: cut by key:test.*: maintenance", client.errors(5.0))
    assert slices.await_end() == "cut"


def test_allocation_has_at_most_eight_open_connections(slices: Slices) -> None:
    clients = [Client(slices.gateway.command(slices.allocation, slices.key, "-W", "slice:22", "127.0.0.1"))]
    try:
        greeted(clients[0])
        slices.plane.rows(
            "insert into work.console select 'con-' || n, version, allocation_id, slot_id, node_id, kind, shared, actor,"
            " origin, null, null, gen_random_uuid(), state, null, now() + interval '1 minute'"
            " from work.console, generate_series(1, 7) n returning 1"
        )
        to = ("-W", "slice:22", "127.0.0.1")
        refused = slices.gateway.refusal(slices.allocation, slices.key, *to)
        assert "the allocation has 8 open or requested SSH connections, which is the maximum" in refused
        slices.plane.rows("delete from work.console where console_id = 'con-1' returning 1")
        with slices.connection() as client:
            greeted(client)
    finally:
        for each in clients:
            each.end()
        slices.plane.rows("delete from work.console where length(console_id) < 10 returning 1")


def test_no_byte_is_passed_on_if_the_connection_cannot_be_recorded(slices: Slices) -> None:
    slices.plane.rows(
        "create function public.refuse() returns trigger language plpgsql as $$ begin raise 'full' using errcode = '53100'; end $$; select 1"
    )
    try:
        slices.plane.rows(
            "create trigger refuse before insert on ledger.event for each row when (new.type = 'console.connected')"
            " execute function public.refuse(); select 1"
        )
        to = ("-W", "slice:22", "127.0.0.1")
        refused = slices.gateway.refusal(slices.allocation, slices.key, *to)
        assert "the connection could not be recorded" in refused
    finally:
        slices.plane.rows("drop function public.refuse cascade; select 1")
    assert slices.events() == [("console.requested", ""), ("console.failed", "not_recorded")]


def test_bytes_of_a_long_transfer_arrive_complete_and_in_their_order(slices: Slices) -> None:
    sent = os.urandom(4_000_000)
    with slices.connection() as client:
        writer = Thread(target=greeted(client).write, args=(sent,))
        writer.start()
        assert client.read(len(sent)) == sent
        writer.join()


def test_api_view_of_an_active_allocation_contains_the_address_of_the_ssh_gateway(
    slices: Slices, tmp_path: Path
) -> None:
    shown = {"address": "ssh.example.com:2222", "host_key": slices.other_key.public}
    settings = {f"SLICEPLANE_SSH_GATEWAY_{name.upper()}": value for name, value in shown.items()}
    with api_process(slices.plane, tmp_path / "api.log", **settings) as api, api.plane.client() as client:
        path = f"/allocations/{slices.allocation}"
        assert client.get(path).json()["ssh_gateway"] == shown
        assert client.delete(path).is_success
        assert client.get(path).json()["ssh_gateway"] is None
    assert slices.site.show(slices.allocation)["ssh_gateway"] is None


def test_ssh_sessions_of_a_stopped_gateway_end_with_a_reason(slices: Slices) -> None:
    with slices.connection() as client:
        greeted(client)
        slices.gateway.child.send(signal.SIGTERM)
        assert "the SSH gateway stops" in client.errors(5.0)
    assert slices.await_end() == "gateway_stopped"


def test_end_of_an_ssh_session_is_recorded_if_its_gateway_is_killed(slices: Slices) -> None:
    with slices.connection() as client:
        greeted(client)
        slices.gateway.child.send(signal.SIGKILL)
        client.errors(5.0)
    until(lambda: len(slices.events()) == 3, "the end is recorded", 25)
    assert slices.events()[-1] == ("console.disconnected", "gateway_process_ended")


def test_ssh_connection_ends_if_the_agent_of_the_node_is_killed(slices: Slices) -> None:
    with slices.connection() as client:
        greeted(client)
        slices.site.node.agent.send(signal.SIGKILL)
        client.errors(6.0)
    assert slices.await_end() == "closed_by_node"
