"""Every fact ever stored stays readable: one golden JSON for each stored name and version.

A new fact or version adds a line to `facts.json`; a line is never changed or removed.
"""

import json
from pathlib import Path
from typing import Final

import pytest

from events import catalog

GOLDEN: Final[dict[str, dict[str, object]]] = json.loads(
    Path(__file__).with_name("facts.json").read_text(encoding="utf-8")
)


def test_every_fact_has_its_golden_json() -> None:
    assert {f"{name}/{version}" for name, (version, _) in catalog.CATALOG.items()} <= GOLDEN.keys()


@pytest.mark.parametrize("name", GOLDEN)
def test_a_golden_fact_reads_and_writes_back_to_the_same_bytes(name: str) -> None:
    type_, version = name.split("/")
    stored = json.dumps(GOLDEN[name], sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    assert catalog.encode(catalog.decode(type_, int(version), stored)) == (type_, int(version), stored)


def test_an_unknown_fact_is_refused_by_name() -> None:
    with pytest.raises(catalog.UnknownFact, match=r"slot\.painted"):
        catalog.decode("slot.painted", 1, "{}")
