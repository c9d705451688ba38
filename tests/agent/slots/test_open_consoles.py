"""Tests of the limits for open consoles of a node: one session per console, and a maximum number of SSH connections."""

import threading
from typing import Literal
from uuid import uuid4

import pytest

from events.values import AllocationId, NodeId, SlotId
from node_agent.operations import console_streams
from node_agent.operations.console_streams import OpenConsoles
from tasks.streams import StreamRequest

_ALLOCATION = AllocationId("alc-01h455vb4pex5vsknk084sn02q")


def _request(kind: Literal["graphics", "serial_console", "ssh"], *, shared: bool = False) -> StreamRequest:
    return StreamRequest(
        stream_id=uuid4(),
        kind=kind,
        node_id=NodeId("lab-a"),
        slot_id=SlotId("lab-a/0"),
        allocation_id=_ALLOCATION,
        shared=shared,
    )


@pytest.mark.parametrize("kind", ["graphics", "serial_console"])
def test_console_request_waits_until_the_console_of_the_ended_session_is_closed(
    kind: Literal["graphics", "serial_console"],
) -> None:
    consoles, ended, following = OpenConsoles(), _request(kind), _request(kind)
    assert consoles.reserve(ended) is None
    found: list[str | None] = []
    waiting = threading.Thread(target=lambda: found.append(consoles.reserve(following)))
    waiting.start()
    consoles.free(ended)
    waiting.join()
    assert found == [None]


def test_second_session_on_a_console_that_stays_open_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(console_streams, "CLOSING_SECONDS", 0.0)
    consoles = OpenConsoles()
    for kind in ("graphics", "serial_console"):
        assert consoles.reserve(_request(kind)) is None
        assert "is open in another session" in (consoles.reserve(_request(kind)) or "")
    assert consoles.reserve(_request("graphics", shared=True)) is None
    assert consoles.reserve(_request("ssh")) is None
    assert consoles.reserve(_request("ssh")) is None


def test_ssh_connection_above_the_maximum_is_refused_without_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(console_streams, "CLOSING_SECONDS", 1000.0)
    consoles = OpenConsoles()
    for _ in range(console_streams.MOST_SSH):
        assert consoles.reserve(_request("ssh")) is None
    assert "which is the maximum" in (consoles.reserve(_request("ssh")) or "")


def test_waiting_console_request_is_refused_as_soon_as_the_agent_stops() -> None:
    consoles = OpenConsoles()
    assert consoles.reserve(_request("graphics")) is None
    found: list[str | None] = []
    waiting = threading.Thread(target=lambda: found.append(consoles.reserve(_request("graphics"))))
    waiting.start()
    consoles.close()
    waiting.join()
    assert found == ["the agent of the node is stopping"]
