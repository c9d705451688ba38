"""Readable names of response fields, for the command line and the web console.

The API names a field by its JSON pointer (RFC 6901), such as `/slots/0/mac_address`. Its readable name is `slot MAC`,
and that of the same field of the next slot is `slot 1 MAC`.
"""

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Final

_WORDS: Final = {
    "id": "", "holders": "", "kind": "", "message": "",
    "slots": "slot", "endpoints": "endpoint", "images": "image", "devices": "device", "sources": "source",
    "labels": "label", "public_addresses": "public",
    "slot_id": "slot", "node_id": "node", "allocation_id": "allocation", "ingress_id": "ingress",
    "mac_address": "MAC", "mac": "MAC", "private_ip": "address", "actual_ip": "observed address",
    "expected_ip": "expected address", "lease_state": "DHCP",
    "sku": "SKU", "skus": "SKU", "sku_version": "SKU version", "slot_index": "index", "vcpus": "vCPU", "memory_mib": "memory", "numa_node": "NUMA node", "l2_domain": "L2 domain",
    "expires_at": "until", "requested_by": "requested by",
    "agent_version": "agent", "key_thumbprint": "key", "key_id": "key", "network_mode": "mode",
}  # fmt: skip
_WORDS_OF_HOLDERS: Final = {
    "value": "held", "stream": "held by", "kind": "kind of address", "since": "held since position",
}  # fmt: skip
_PARTS_OF_HOLDER: Final = 3
"""Number of parts of the path of a holder's own field, such as `/holders/0/kind`."""


def parts_of(path: str) -> list[str]:
    """Return the parts of a JSON pointer."""
    return [part.replace("~1", "/").replace("~0", "~") for part in path.removeprefix("/").split("/")]


def readable_name(parts: Sequence[str]) -> str:
    """Return the readable name of the field with this path. Numbers are indexes of lists, and 0 is omitted."""
    return " ".join(_words(parts)) or parts[-1]


def _words(parts: Sequence[str]) -> Iterator[str]:
    match parts:
        case ["labels", label]:  # a label keeps the name that its owner chose
            yield f"label {label}"
        case _:
            of_holder = len(parts) == _PARTS_OF_HOLDER and parts[0] == "holders"
            known = {**_WORDS, **_WORDS_OF_HOLDERS} if of_holder else _WORDS
            translated = (known.get(part, part.replace("_", " ")) for part in parts)
            yield from (word for word, _ in groupby(word for word in translated if word not in {"", "0"}))
