"""nftables, object by object, without what counts or numbers (libnftables-json(5))."""

from collections.abc import Iterator
from typing import Final

import msgspec

from node_agent.lab.leaks.target import HostTarget

Json = dict[str, "Json"] | list["Json"] | str | int | float | bool | None

_PASSING: Final = frozenset({"handle", "packets", "bytes", "expires", "used"})
"""Numbers that the kernel gives or counts up; two rulesets that differ only in them are equal."""


def objects(host: HostTarget) -> Iterator[str]:
    """Tables, chains, rules, sets with one entry an element, counters, meters."""
    listing: dict[str, list[dict[str, Json]]] = msgspec.json.decode(host.read("nft", "-j", "list", "ruleset"))
    for entry in listing["nftables"]:
        for kind, body in entry.items():
            if kind != "metainfo" and isinstance(body, dict):
                yield from _described(kind, body)


def _described(kind: str, body: dict[str, Json]) -> Iterator[str]:
    lasting = _lasting(body)
    assert isinstance(lasting, dict)
    elements = lasting.pop("elem", None)
    place = " ".join(str(lasting.pop(key)) for key in ("family", "table", "chain", "name") if key in lasting)
    yield f"{kind} {place} {_text(lasting)}"
    if isinstance(elements, list):
        yield from (f"element {place} {_text(element)}" for element in elements)


def _lasting(value: Json) -> Json:
    match value:
        case dict():
            return {key: _lasting(inner) for key, inner in value.items() if key not in _PASSING}
        case list():
            return [_lasting(inner) for inner in value]
        case _:
            return value


def _text(value: Json) -> str:
    return msgspec.json.encode(value, order="sorted").decode()
