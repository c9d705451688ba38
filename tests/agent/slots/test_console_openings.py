"""Tests of how a node opens the consoles that the control plane requests."""

import socket
from pathlib import Path
from uuid import uuid4

from events.values import AllocationId, SlotId
from node_agent.aspects.gateway import node_network
from node_agent.operations.streams import Streams
from node_agent.runtime.timetable import Timetable
from node_agent.slots.fence import FenceFiles
from node_agent.slots.slots import Slots
from tasks.streams import StreamRequest
from tests.agent.credential_client import OneCredential, client_of
from tests.agent.entrance import SUBNET, Entrance
from tests.agent.orders import NODE

_ALLOCATION = AllocationId("alc-01h455vb4pex5vsknk084sn02q")


def test_request_to_open_a_console_returns_before_the_console_is_open(tmp_path: Path) -> None:
    node = Entrance(tmp_path)
    assert node.host is not None
    slots = Slots(
        NODE,
        node_network(node.settings, SUBNET),
        (slot.index for slot in node.settings.slots),
        FenceFiles(tmp_path / "fence", node.trust.verify_stored),
        lambda: None,
    )
    # An API that accepts connections and never answers.
    with socket.create_server(("127.0.0.1", 0)) as api:
        url = f"http://127.0.0.1:{api.getsockname()[1]}"
        settings = node.settings.model_copy(update={"api_url": url})
        streams = Streams(
            settings, OneCredential("a"), node.host, slots, client_of(url, "a"), timetable=Timetable()
        )
        request = StreamRequest(
            stream_id=uuid4(),
            kind="ssh",
            node_id=NODE,
            slot_id=SlotId(f"{NODE}/0"),
            allocation_id=_ALLOCATION,
        )
        streams.open(request)
        accepted, _ = api.accept()
        with accepted:
            assert accepted.recv(4) == b"GET "
            accepted.settimeout(0)
            accepted.recv(65_536)
            # The node has not given up, so `open` has returned before the end of the attempt.
            try:
                ended = accepted.recv(1) == b""
            except BlockingIOError:
                ended = False
            assert not ended
        streams.close()
