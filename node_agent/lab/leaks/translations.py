"""Objects of nftables, without counters and handles (libnftables-json(5))."""

from collections.abc import Iterator
from typing import Final

import msgspec

from node_agent.lab.leaks.target import HostTarget

Json = dict[str, "Json"] | list["Json"] | str | int | float | bool | None

_VOLATILE: Final = frozenset({"handle", "packets", "bytes", "expires", "used"})
"""Fields that the kernel assigns or counts. Rulesets that differ only in these fields are equal."""


def objects(host: HostTarget) -> Iterator[str]:
    """Yield the nftables objects of a host: tables, chains, rules, counters, meters, and sets with their elements."""
    listing: dict[str, list[dict[str, Json]]] = msgspec.json.decode(host.read("nft", "-j", "list", "ruleset"))
    for entry in listing["nftables"]:
        for kind, body in entry.items():
            if kind != "metainfo" and isinstance(body, dict):
                yield from _described(kind, body)


def _described(kind: str, body: dict[str, Json]) -> Iterator[str]:
    stable = _stable(body)
    assert isinstance(stable, dict)
    elements = stable.pop("elem", None)
    place = " ".join(str(stable.pop(key)) for key in ("family", "table", "chain", "name") if key in stable)
    yield f"{kind} {place} {_text(stable)}"
    if isinstance(elements, list):
        yield from (f"element {place} {_text(element)}" for element in elements)


def _stable(value: Json) -> Json:
    match value:
        case dict():
            return {key: _stable(inner) for key, inner in value.items() if key not in _VOLATILE}
        case list():
            return [_stable(inner) for inner in value]
        case _:
            return value


def _text(value: Json) -> str:
    return msgspec.json.encode(value, order="sorted").decode()
