"""Display names and values of changed fields. Fields that the heading of the page already shows, such as the resource's
id, have no display name.
"""

from datetime import datetime
from typing import Final

from rich.text import Text

from control_plane.cli.pages import words
from control_plane.client.field_names import parts_of, readable_name
from control_plane.client.history_answers import Value

_IN_HEADING: Final = frozenset({
    "id", "node_id", "index", "version", "generation", "requested_at", "lease/granted_at", "superseded_at",
    "slots/node_id", "slots/slot_index", "drift/node_id", "drift/slot_id",
    "holders/kind", "holders/since", "holders/allocation/requested_at",
    "holders/slot/node_id", "holders/slot/index", "holders/slot/allocation_id",
    "holders/slot/drift/node_id", "holders/slot/drift/slot_id",
})  # fmt: skip
_TIMES: Final = frozenset({"expires_at", "since"})


def name(path: str) -> str | None:
    """Return the display name of a field, or None if the heading already shows it."""
    parts = parts_of(path)
    if "/".join(part for part in parts if not part.isdigit()) in _IN_HEADING:
        return None
    return readable_name(parts)


def value(path: str, raw: Value) -> Text:
    leaf = path.rpartition("/")[2]
    match raw:
        case None:
            return Text("-", "dim")
        case bool():
            return Text("yes" if raw else "no")
        case str() if leaf in _TIMES:
            return Text(words.clock(datetime.fromisoformat(raw)))
        case int() if leaf == "memory_mib":
            return Text(words.amount(raw))
        case _:
            return words.state(raw) if isinstance(raw, str) and leaf.endswith("state") else Text(str(raw))
