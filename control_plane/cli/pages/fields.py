"""Display names of response fields.

The API names a changed field by its JSON pointer (RFC 6901), and the client displays a readable name instead:
`slots/0/mac_address` as `slot MAC`, and the same field of the next slot as `slot 1 MAC`. Fields that the heading of the
page already shows, such as the resource's id, have no display name.
"""

from collections.abc import Iterator
from datetime import datetime
from itertools import groupby
from typing import Final

from rich.text import Text

from control_plane.cli.pages import words
from control_plane.client.history_answers import Value

_IN_HEADING: Final = frozenset({
    "id", "node_id", "index", "version", "generation", "requested_at", "lease/granted_at", "superseded_at",
    "slots/node_id", "slots/slot_index", "drift/node_id", "drift/slot_id",
    "holders/kind", "holders/since", "holders/allocation/requested_at",
    "holders/slot/node_id", "holders/slot/index", "holders/slot/allocation_id",
    "holders/slot/drift/node_id", "holders/slot/drift/slot_id",
})  # fmt: skip
_WORDS: Final = {
    "id": "", "holders": "", "kind": "", "message": "",
    "slots": "slot", "endpoints": "endpoint", "images": "image", "devices": "device", "sources": "source",
    "labels": "label", "public_addresses": "public",
    "slot_id": "slot", "node_id": "node", "allocation_id": "allocation", "ingress_id": "ingress",
    "mac_address": "MAC", "private_ip": "address", "actual_ip": "observed at", "lease_state": "DHCP",
    "sku": "SKU", "skus": "SKU", "vcpus": "vCPU", "memory_mib": "memory", "numa_node": "NUMA node", "l2_domain": "L2 domain",
    "expires_at": "until", "requested_by": "requested by", "value": "held", "stream": "held by",
    "agent_version": "agent", "key_thumbprint": "key", "network_mode": "mode",
}  # fmt: skip
_TIMES: Final = frozenset({"expires_at", "since"})


def name(path: str) -> str | None:
    """Return the display name of a field, or None if the heading already shows it."""
    parts = [part.replace("~1", "/").replace("~0", "~") for part in path.removeprefix("/").split("/")]
    if "/".join(part for part in parts if not part.isdigit()) in _IN_HEADING:
        return None
    return " ".join(_words(parts))


def _words(parts: list[str]) -> Iterator[str]:
    match parts:
        case ["labels", label]:  # a label keeps the name that its owner chose
            yield f"label {label}"
        case _:
            translated = (_WORDS.get(part, part.replace("_", " ")) for part in parts)
            yield from (word for word, _ in groupby(word for word in translated if word not in {"", "0"}))


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
