"""Every shape of a fact that was ever stored stays readable, and means what it meant."""

import msgspec
import pytest

from events import catalog
from events.shapes import UnknownFact
from tests.golden.corpus import canonical, corpus

GOLDEN = corpus()


def test_every_shape_ever_stored_reads_as_it_did() -> None:
    assert list(GOLDEN.objections()) == []


@pytest.mark.parametrize("key", GOLDEN.stored)
def test_the_road_of_older_versions_reads_what_the_straight_one_reads(key: str) -> None:
    name, _, version = key.partition("/")
    fact = catalog.decode(name, int(version), canonical(GOLDEN.stored[key]))

    assert msgspec.convert(msgspec.json.decode(canonical(fact)), type(fact)) == fact


def test_an_unknown_fact_is_refused_by_name() -> None:
    with pytest.raises(UnknownFact, match=r"slot\.painted"):
        catalog.decode("slot.painted", 1, "{}")
