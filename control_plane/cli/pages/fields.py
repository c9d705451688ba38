"""Fields of what the API answers, in the words that the pages have for them.

A difference names a field by its path in the answer (RFC 6901). On the screen `slots/0/mac_address` is `slot MAC`, and
the same of the slot after that `slot 1 MAC`. What the line above says already is not said again: what a thing is
called, when an event was, how many there are.
"""

from collections.abc import Iterator
from datetime import datetime
from itertools import groupby
from typing import Final

from rich.text import Text

from control_plane.cli.pages import words
from control_plane.cli.pasts import Value

_SAID_ABOVE: Final = frozenset({
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
    "mac_address": "MAC", "private_ip": "address", "actual_ip": "seen at", "lease_state": "DHCP",
    "sku": "SKU", "vcpus": "vCPU", "memory_mib": "memory", "numa_node": "NUMA node", "l2_domain": "L2 domain",
    "expires_at": "until", "requested_by": "asked for by", "value": "held", "stream": "held by",
    "agent_version": "agent", "key_thumbprint": "key", "network_mode": "mode",
}  # fmt: skip
_TIMES: Final = frozenset({"expires_at", "since"})


def name(path: str) -> str | None:
    """None for what is said above it."""
    parts = [part.replace("~1", "/").replace("~0", "~") for part in path.removeprefix("/").split("/")]
    if "/".join(part for part in parts if not part.isdigit()) in _SAID_ABOVE:
        return None
    return " ".join(_words(parts))


def _words(parts: list[str]) -> Iterator[str]:
    match parts:
        case ["labels", label]:  # called as its owner wished
            yield f"label {label}"
        case _:
            told = (_WORDS.get(part, part.replace("_", " ")) for part in parts)
            yield from (word for word, _ in groupby(word for word in told if word not in {"", "0"}))


def value(path: str, told: Value) -> Text:
    leaf = path.rpartition("/")[2]
    match told:
        case None:
            return Text("-", "dim")
        case bool():
            return Text("yes" if told else "no")
        case str() if leaf in _TIMES:
            return Text(words.clock(datetime.fromisoformat(told)))
        case int() if leaf == "memory_mib":
            return Text(words.amount(told))
        case _:
            return words.state(told) if isinstance(told, str) and leaf.endswith("state") else Text(str(told))
