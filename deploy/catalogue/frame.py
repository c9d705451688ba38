"""What docs/events.md says besides the events themselves. The words stand here; the check keeps the rest beside
them.
"""

from typing import Final

HEAD: Final = """# Events

Everything that Sliceplane decided or saw, as it stands in the ledger. This page is made from the code by `./dev events`,
and `./dev check` fails when the two differ, so it is never behind.

An event is a fact in the past tense. It is stored once, in one row, and never changed or removed: the database refuses
that to the control plane itself. Each belongs to one **stream**, the life of one thing, and has its **version** there,
from 1 without a gap. All events of all streams have one order, their **position**.
"""

ENVELOPE: Final = {
    "position": "place in the order of all events; positions rise, and some are never used",
    "event_id": "UUIDv7 of this event",
    "stream_id": "the stream, the life of one thing",
    "version": "place within the stream, from 1 without a gap",
    "type": "name of the event, as on this page",
    "schema_version": "which shape of this type `data` has",
    "project": "on whose account, or null",
    "actor": "who: a key (`key:...`), a node (`node:...`), a part of the control plane (`process:...`), or `operator`, on the machine itself",
    "why": "the request and its id, or the reason in a word",
    "correlation_id": "shared by all that follows from one request; an allocation's is the UUID in its id",
    "causation_id": "`event_id` of the event that led to this one, or null",
    "trace_context": "W3C `traceparent` of the request, or null",
    "observed_at": "when it happened, as whoever saw it says",
    "recorded_at": "when it was recorded, by the database's clock",
    "epoch": "counts restores of the ledger; from then on positions may name other events than before",
    "data": "the fields below, as canonical JSON: keys sorted, no white space, UTF-8",
    "leaf": "SHA-256 over all other columns",
}
"""Column of `ledger.event` to its meaning."""

ENVELOPE_HEAD: Final = """## What stands around every event

The columns of `ledger.event`. Times are UTC; within `data` they are RFC 3339 text.
"""

CLAIMS_HEAD: Final = """## What has one holder

An event may take a **claim** on a thing, for its stream. The database lets no second stream take it until the holder's has
freed it. `{subnet}` stands for what the event says in that field.
"""

PARTS_HEAD: Final = """## Parts of events

Objects that fields hold.
"""

KINDS_HEAD: Final = """## Kinds of values
"""

TAIL: Final = """## How a shape changes

The shape of a type is its fields and what they mean. Each shape that was ever stored has a version and stays readable for
ever: a row of an older version is read through functions from each version to the next (`events/upcasts.py`), and then is a fact
like any other. Rows are never rewritten; their hashes would not hold.

During a rollout old and new releases run side by side, and what an old one cannot read stops its readers. So it takes
two releases:

1. The release that **reads** the new shape. Change the class; raise the version in `events/catalog.py`; give
   `events/upcasts.py` the function from the version before, and the catalog's line `still_written`, the function back to it. This
   release reads both versions and writes the older one. It refuses to record a fact that the older one would cut short, so
   nothing may be said with the new shape yet that the old one has no words for.
2. The release that **writes** it. Remove `still_written` once no release before the first runs any more.

Nothing was released yet, so until then a new shape is read and written by the same commit.

A field that is only added goes the same way: older releases refuse a field that they do not know, rather than lose it.
A new type goes the same way too: the first release reads it, the second records it. A type that is no longer
recorded keeps its line and its class.

The examples in `tests/golden` hold this to account. `facts.json` has one of every version, today's and all before;
`released.json` pins their bytes; `read_today.json` says what each older one reads as. `./dev test golden` names whatever is
missing, and the line to add.
"""
