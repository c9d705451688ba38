"""Watches under faults: a client that does not read, an API that is killed, a ledger in a new epoch (P15)."""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

import psycopg
import pytest

from events.allocations import SliceReady
from events.ledger.append import append
from events.values import Ipv4Address, SlotId
from tests import matrix
from tests.api.api_process import ApiProcess, api_process
from tests.api.node import admit, allocate
from tests.api.streams import open_stream, watch_events
from tests.ledger.given import ALLOCATION, because, on
from tests.servers.plane import ADMIN_KEY, EVENTS_OF_THE_LAB, RunningPlane
from tests.waiting import until

LARGE: Final = 16_000
"""Size of a large event in bytes."""
MIB: Final = 2**20
OF_THE_START: Final = len(EVENTS_OF_THE_LAB) + 2
"""Number of events of a new control plane: the catalogue of the lab, the first project and the first key."""


@pytest.fixture
def api(running_plane: RunningPlane, tmp_path: Path) -> Iterator[ApiProcess]:
    with api_process(running_plane, tmp_path / "api.log") as made:
        yield made


def fill(plane: RunningPlane, stream: str, commits: int, each: int) -> None:
    """Append large events to a ledger stream: `each` events in each of `commits` transactions."""
    fact = SliceReady(ALLOCATION, SlotId("lab-a/0"), Ipv4Address("10.100.1.10"), 22, "x" * LARGE)

    async def commit() -> None:
        async with await psycopg.AsyncConnection.connect(plane.database.app_dsn) as conn:
            for number in range(commits):
                async with conn.transaction():
                    await append(conn, [on(stream, number * each, *[fact] * each)], because())

    asyncio.run(commit())


def positions(plane: RunningPlane) -> list[int]:
    return [position for (position,) in plane.rows("select position from ledger.event order by position")]


@contextmanager
def unread_watch(plane: RunningPlane) -> Iterator[socket.socket]:
    """Open a watch and yield its socket, from which nothing is read."""
    host, port = plane.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port))) as client:
        client.sendall(
            f"GET /v1/events/watch HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {ADMIN_KEY}\r\n\r\n".encode()
        )
        yield client


def test_watch_clients_that_do_not_read_neither_delay_others_nor_use_much_memory(api: ApiProcess) -> None:
    with ExitStack() as opened:
        for _ in range(20):
            opened.enter_context(unread_watch(api.plane))
        stream = opened.enter_context(open_stream(api.plane, "/events/watch"))
        stream.take(OF_THE_START)
        before = api.memory()
        fill(
            api.plane, "filling", 5, 240
        )  # 18 MiB: what each of the twenty watches would buffer without a limit
        seen = [event.data["position"] for event in stream.take(1200)]
        assert seen == positions(api.plane)[OF_THE_START:]
        assert api.memory() - before < 90 * MIB


def test_watch_client_that_reads_late_receives_every_event_in_order(api: ApiProcess) -> None:
    """The API's ring buffer no longer holds the events that the client missed; the API reads them from Postgres."""
    with open_stream(api.plane, "/events/watch") as late:
        late.take(OF_THE_START)
        fill(api.plane, "filling", 75, 20)
        with open_stream(api.plane, "/events/watch") as other:
            assert other.take(OF_THE_START + 1500)[-1].data["position"] == positions(api.plane)[-1]
        assert [event.data["position"] for event in late.take(1500)] == positions(api.plane)[OF_THE_START:]


def test_api_that_stops_ends_its_watches_with_a_complete_response(api: ApiProcess) -> None:
    with open_stream(api.plane, "/events/watch") as stream:
        [*_, first] = stream.take(OF_THE_START)
        api.child.stop()
        with pytest.raises(EOFError):  # a broken connection would raise another error
            stream.take(1)
    api.start()
    fill(api.plane, "filling", 1, 1)
    [second] = watch_events(api.plane, "/events/watch", 1, last_event_id=first.id)
    assert [first.data["position"], second.data["position"]] == positions(api.plane)[-2:]


class _Following:
    """Process that runs `sliceplane events follow -o json`, with the events that it has printed."""

    def __init__(self, plane: RunningPlane, *options: str) -> None:
        environment = {**os.environ, "SLICEPLANE_URL": plane.url, "SLICEPLANE_API_KEY": ADMIN_KEY}
        self.process = subprocess.Popen(
            (sys.executable, "-m", "control_plane.cli", "events", "follow", "-o", "json", *options),
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.events: list[dict[str, Any]] = []
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.events.append(json.loads(line))

    def printed_positions(self) -> list[int]:
        return [event["position"] for event in self.events]

    def end(self) -> None:
        self.process.send_signal(signal.SIGINT)
        self.wait()

    def wait(self) -> tuple[int, str]:
        """Wait until the process exits, and return its exit code and its standard error."""
        assert self.process.stderr is not None
        code, errors = self.process.wait(20), self.process.stderr.read()
        self._reader.join(20)
        return code, errors


@contextmanager
def following(plane: RunningPlane, *options: str) -> Iterator[_Following]:
    made = _Following(plane, *options)
    try:
        yield made
    finally:
        made.end()


def test_events_follow_command_neither_loses_nor_repeats_events_when_the_api_is_killed(
    api: ApiProcess,
) -> None:
    kills = 3 if matrix.is_full() else 1
    with following(api.plane) as everything, following(api.plane, "--type", "node.registered") as filtered:
        for kill in range(kills):
            assert api.plane.client().post("/nodes", json={"id": f"n{kill}"}).status_code == 201
            until(lambda: everything.printed_positions() == positions(api.plane), "all events are printed")
            until(
                lambda: names(filtered) == [f"node-n{each}" for each in range(kill + 1)],  # noqa: B023 (called at once)
                "filtered events are printed",
            )
            writing = threading.Thread(target=fill, args=(api.plane, f"filling-{kill}", 30, 2))
            count = len(everything.printed_positions())
            writing.start()
            until(
                lambda: len(everything.printed_positions()) > count + 5,  # noqa: B023 (called at once)
                "some of the new events are printed",
            )
            api.kill()
            writing.join()
            api.start()
        until(lambda: everything.printed_positions() == positions(api.plane), "all events are printed")
        assert names(filtered) == [f"node-n{kill}" for kill in range(kills)]


def names(follower: _Following) -> list[str]:
    return [event["stream"] for event in follower.events]


def test_events_follow_command_exits_with_an_error_when_the_ledger_was_restored(api: ApiProcess) -> None:
    fill(api.plane, "filling", 1, 5)
    last = positions(api.plane)[-1]
    with following(api.plane) as follower:
        until(lambda: follower.printed_positions() == positions(api.plane), "all events are printed")
        api.kill()
        restore(api.plane, last - 2)
        api.start()
        code, errors = follower.wait()
    assert code == 1
    assert f"1.{last}" in errors
    assert "restored from a backup" in errors


def restore(plane: RunningPlane, upto: int) -> None:
    """Change the ledger as a restore from a backup does: fewer events, in a new epoch."""
    with psycopg.connect(plane.database.admin_dsn, autocommit=True) as admin:
        admin.execute("delete from ledger.event where position > %s", [upto])
        admin.execute("select setval('ledger.position_seq', %s)", [upto])
        admin.execute("select ledger.begin_epoch('restored')")


def test_event_cursor_with_the_wrong_epoch_for_its_position_is_expired_and_correct_cursors_stay_valid(
    running_plane: RunningPlane,
) -> None:
    running_plane.client().post("/nodes", json={"id": "n1"})
    [*_, old] = watch_events(running_plane, "/events/watch", OF_THE_START + 1)
    with psycopg.connect(running_plane.database.admin_dsn, autocommit=True) as admin:
        admin.execute("select ledger.begin_epoch('failover')")
    running_plane.client().post("/nodes", json={"id": "n2"})
    [new] = watch_events(running_plane, "/events/watch", 1, last_event_id=old.id)
    assert (old.id[:2], new.id[:2], new.data["stream"]) == ("1.", "2.", "node-n2")
    for gone in (f"2.{old.data['position']}", f"1.{new.data['position']}"):
        for path in ("/events", "/events/watch"):
            answer = running_plane.client().get(path, params={"after": gone})
            assert answer.status_code == 410
            assert gone in answer.json()["detail"]
    assert running_plane.client().get("/events", params={"after": new.id}).json()["items"] == []


def test_watch_and_list_of_an_allocation_timeline_return_the_same_events(running_plane: RunningPlane) -> None:
    admit(running_plane, "n1")
    admit(running_plane, "n2")
    watched_allocation = allocate(running_plane).json()["id"]
    other = allocate(running_plane).json()["id"]
    path = f"/allocations/{watched_allocation}"
    with open_stream(running_plane, f"{path}/watch") as stream:
        first_events = stream.take(4)
        for each in (watched_allocation, other):
            assert running_plane.client().delete(f"/allocations/{each}").status_code == 202
        received = first_events + stream.take(1)
    types = [event.type for event in received[:3]]
    assert types == ["allocation.requested", "allocation.specified", "allocation.placed"]
    assert {event.data["correlation_id"] for event in received} == {received[0].data["correlation_id"]}
    listed = running_plane.client().get(f"{path}/events").json()["items"]
    assert listed[: len(received)] == [event.data for event in received]
    assert watch_events(running_plane, f"{path}/watch", 2, last_event_id=received[1].id) == received[2:4]
    first = running_plane.client().get(f"{path}/events?limit=2").json()
    rest = running_plane.client().get(f"{path}/events", params={"cursor": first["next_cursor"]}).json()
    assert [*first["items"], *rest["items"]] == listed
