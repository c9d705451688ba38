"""Fixed text of docs/events.md; the rest of the page is generated from the code. A check compares page and code."""

from typing import Final

HEAD: Final = """# Events

All decisions and observations of Sliceplane, as recorded in the ledger. This page is generated from the code by `./dev events`,
and `./dev check` fails if the two differ.

An event is a fact in the past tense. It is stored once, in one row, and never changed or removed: the database refuses
that even to the control plane. Each event belongs to one **stream**, the timeline of one object, and has a **version** in it,
from 1 without gaps. All events of all streams have one total order, their **position**.
"""

ENVELOPE: Final = {
    "position": "position in the order of all events; positions ascend, and some are never used",
    "event_id": "UUIDv7 of this event",
    "stream_id": "id of the event's stream, which is the timeline of one object",
    "version": "position within the stream, from 1 without gaps",
    "type": "type of the event, one of those that this page lists",
    "schema_version": "version of the event type, which defines the fields in `data`",
    "project": "project that the event is charged to, or null",
    "actor": "acting principal: a key (`key:...`), a node (`node:...`), a part of the control plane (`process:...`), or `operator` on the machine itself",
    "reason": "reason of the event: the request and its id, or one word",
    "correlation_id": "id shared by everything that follows from one request; for an allocation it is the UUID in its id",
    "causation_id": "`event_id` of the event that caused this one, or null",
    "trace_context": "W3C `traceparent`: the trace id of the request from which the event follows and, as parent id, the direct cause of the event; null without a request",
    "observed_at": "time at which the event happened, according to the observer",
    "recorded_at": "time at which the event was recorded, on the database's clock",
    "epoch": "number of the ledger's epoch, which rises with each restore of a backup; in a later epoch the same position may belong to another event",
    "data": "the fields of the event type, listed on this page, as canonical JSON: sorted keys, no white space, UTF-8",
    "leaf": "SHA-256 of all other columns of the row",
}
"""Meaning of each column of `ledger.event`."""

ENVELOPE_HEAD: Final = """## The envelope of every event

The columns of `ledger.event`. Times are UTC; within `data` they are RFC 3339 text.
"""

CLAIMS_HEAD: Final = """## Claims

An event may take a **claim** on an object for its stream. The database refuses the claim to every other stream until the holder
has freed it. `{subnet}` stands for the value of that field of the event. An ingress rule without a service has a whole public address,
and its claim `port` is on `{rule.public_address}`.
"""

PARTS_HEAD: Final = """## Parts of events

Objects in fields of events.
"""

KINDS_HEAD: Final = """## Kinds of values
"""

TAIL: Final = """## How a shape changes

The shape of a type consists of its fields and their meaning. Each shape that was ever stored has a version and stays readable
permanently: a row of an older version is converted by functions from each version to the next (`events/upcasts.py`). Rows are never
rewritten, because that would invalidate their hashes.

During a rollout old and new releases run side by side, and an event that is unreadable for an old release stops its readers. So
a change takes two releases:

1. The first release **reads** the new shape. Change the class; raise the version in `events/catalog.py`; add the function from the
   previous version to `events/upcasts.py`; set `still_written` in the catalog's line to the function back to the previous version.
   This release reads both versions and writes the older one. It refuses to record a fact that the older version cannot represent, so
   do not use the new fields yet.
2. The second release **writes** it. Remove `still_written` once every running release reads the new shape.

Nothing was released yet; until the first release, one commit may introduce the reading and the writing of a new shape.

A change that only adds a field needs the same two steps: older releases refuse an unknown field instead of losing it.
So does a new type: the first release reads it, the second records it. A type that is no longer recorded keeps its line and its
class.

The examples in `tests/golden` verify these rules. `facts.json` has one example of every version, current and previous;
`released.json` pins their bytes; `read_today.json` pins the result of reading each older one. `./dev test golden` lists everything
that is missing, and the line to add.
"""
