"""Tests that every event shape that was ever stored stays readable and keeps its meaning."""

import msgspec
import pytest

from events import catalog
from events.shapes import UnknownFact
from tests.golden.corpus import canonical, corpus

GOLDEN = corpus()


def test_every_event_shape_ever_stored_still_decodes_to_the_recorded_result() -> None:
    assert list(GOLDEN.objections()) == []


@pytest.mark.parametrize("key", GOLDEN.stored)
def test_stored_event_decoded_and_encoded_again_is_unchanged(key: str) -> None:
    name, _, version = key.partition("/")
    fact = catalog.decode(name, int(version), canonical(GOLDEN.stored[key]))

    assert msgspec.convert(msgspec.json.decode(canonical(fact)), type(fact)) == fact


def test_unknown_event_type_is_rejected_with_its_name() -> None:
    with pytest.raises(UnknownFact, match=r"slot\.painted"):
        catalog.decode("slot.painted", 1, "{}")
