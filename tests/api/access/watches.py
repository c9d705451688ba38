"""Open watches, and read them until they end because the credential of their client has become invalid."""

import json
import time
from contextlib import AbstractContextManager
from typing import Final

from tests.api.streams import Event, Stream, open_stream
from tests.servers.plane import RunningPlane

END_SECONDS: Final = 10.0
"""Time within which a watch ends. A check with each keep-alive message would need up to 15 s."""


def watch_as(plane: RunningPlane, secret: str, path: str = "/events/watch") -> AbstractContextManager[Stream]:
    """Open a watch with an API key or a token."""
    return open_stream(plane, path, Authorization=f"Bearer {secret}")


def rest_of(stream: Stream) -> list[Event]:
    """Return the events that a watch still sends until it ends, which must be soon."""
    begun, events = time.monotonic(), []
    try:
        while True:
            fields = stream.block()
            # A watch that does not end sends keep-alive messages.
            assert time.monotonic() - begun < END_SECONDS, "the watch does not end"
            if "data" in fields:
                events.append(Event(stream.last_event_id, fields["event"], json.loads(fields["data"])))
    except EOFError:
        return events
