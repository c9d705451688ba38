"""Tests that an event type with two changes of its shape is decoded by its upcasters from every version.

These tests use their own catalog, which needs more upcasting than the product's. In version 1, an event stores the
berth in one field and calls the ship a vessel. Version 2 renames the vessel, and version 3 stores the berth as quay and
number.
"""

import json
from collections.abc import Mapping
from dataclasses import replace

import pytest

from events.facts import Fact
from events.shapes import (
    BrokenCatalog,
    JsonObject,
    NotYetWritable,
    Rewrite,
    Shape,
    Shapes,
    UnknownFact,
    UnreadableFact,
)
from tests.golden.corpus import Corpus, canonical, digest


class ShipMoored(Fact, frozen=True):
    quay: str
    number: int
    ship: str
    pilot: str | None = None


class ShipSailed(Fact, frozen=True):
    ship: str


def rename_vessel(shape: JsonObject) -> JsonObject:
    """Convert an event of version 1, which called the ship a vessel, to version 2."""
    return {"ship": shape.pop("vessel"), **shape}


def split_place(shape: JsonObject) -> JsonObject:
    """Convert an event of version 2, in which quay and number were one text, to version 3."""
    quay, _, number = shape.pop("place").partition("/")
    return {"quay": quay, "number": int(number), "pilot": None, **shape}


def join_place(shape: JsonObject) -> JsonObject:
    """Convert an event of version 3 to version 2, for a release that reads version 3 and still writes version 2."""
    return {"place": f"{shape['quay']}/{shape['number']}", "ship": shape["ship"]}


CATALOG = {"ship.moored": Shape(3, ShipMoored), "ship.sailed": Shape(1, ShipSailed)}
UPCASTS: dict[tuple[str, int], Rewrite] = {("ship.moored", 1): rename_vessel, ("ship.moored", 2): split_place}
MOORED = ShipMoored(quay="north", number=7, ship="Vasa")
STORED: dict[str, dict[str, object]] = {
    "ship.moored/1": {"place": "north/7", "vessel": "Vasa"},
    "ship.moored/2": {"place": "north/7", "ship": "Vasa"},
    "ship.moored/3": {"number": 7, "pilot": None, "quay": "north", "ship": "Vasa"},
    "ship.sailed/1": {"ship": "Vasa"},
}


def read(version: int, stored: object, upcasts: Mapping[tuple[str, int], Rewrite] = UPCASTS) -> Fact:
    return Shapes(CATALOG, upcasts).decode("ship.moored", version, json.dumps(stored))


@pytest.mark.parametrize("version", [1, 2, 3])
def test_every_stored_version_of_an_event_type_decodes_to_the_current_event(version: int) -> None:
    assert read(version, STORED[f"ship.moored/{version}"]) == MOORED


def test_event_is_encoded_in_the_newest_version_of_its_type() -> None:
    assert Shapes(CATALOG, UPCASTS).encode(MOORED) == (
        "ship.moored",
        3,
        '{"number":7,"pilot":null,"quay":"north","ship":"Vasa"}',
    )


@pytest.mark.parametrize("version", [0, 4])
def test_event_with_a_schema_version_outside_the_catalog_raises_unknown_fact(version: int) -> None:
    with pytest.raises(UnknownFact, match=rf"ship\.moored' version {version}$"):
        read(version, STORED["ship.moored/3"])


@pytest.mark.parametrize(
    ("version", "stored", "reason"),
    [
        (1, {"place": "north/7"}, "the upcaster from version 1 failed: KeyError 'vessel'"),
        (1, {"place": "north", "vessel": "Vasa"}, "the upcaster from version 2 failed: invalid literal"),
        (2, {"place": 7, "ship": "Vasa"}, "the upcaster from version 2 failed: 'int' object has no"),
        (2, {"place": "north/7", "ship": None}, r"Expected `str`, got `null` - at `\$\.ship`"),
        (2, {"place": "north/7", "ship": "Vasa", "tug": 1}, "contains unknown field `tug`"),
        (3, {"quay": "north", "number": 7}, "missing required field `ship`"),
        (1, ["north/7", "Vasa"], "Expected `object`, got `array`"),
    ],
    ids=[
        "field-missing-for-first-upcaster",
        "value-invalid-for-second-upcaster",
        "type-invalid-for-upcaster",
        "null-in-required-field",
        "unknown-field",
        "required-field-missing",
        "not-an-object",
    ],
)
def test_event_row_that_does_not_match_its_schema_version_raises_unreadable_fact_with_the_reason(
    version: int, stored: object, reason: str
) -> None:
    with pytest.raises(UnreadableFact, match=rf"^ship\.moored version {version} cannot be read: .*{reason}"):
        read(version, stored)


@pytest.mark.parametrize("stored", ["", "{", '{"quay":"north"'], ids=["empty", "brace", "truncated"])
@pytest.mark.parametrize("version", [1, 3])
def test_event_row_that_is_not_json_raises_unreadable_fact(version: int, stored: str) -> None:
    with pytest.raises(UnreadableFact, match=rf"^ship\.moored version {version} cannot be read: Input data"):
        Shapes(CATALOG, UPCASTS).decode("ship.moored", version, stored)


@pytest.mark.parametrize(
    ("invalid", "reason"),
    [
        (lambda shape: {**shape, "number": "seven"}, r"Expected `int`, got `str` - at `\$\.number`"),
        (lambda _: {}, "missing required field `quay`"),
        (lambda _: None, "the upcaster from version 2 returned a NoneType instead of a JSON object"),
        (lambda shape: [shape], "the upcaster from version 2 returned a list instead of a JSON object"),
    ],
    ids=["wrong-type", "empty-object", "none", "list"],
)
@pytest.mark.parametrize("version", [1, 2])
def test_event_upcaster_that_returns_an_invalid_shape_raises_unreadable_fact(
    version: int, invalid: Rewrite, reason: str
) -> None:
    broken = {**UPCASTS, ("ship.moored", 2): lambda shape: invalid(split_place(shape))}

    with pytest.raises(UnreadableFact, match=rf"^ship\.moored version {version} cannot be read: .*{reason}"):
        read(version, STORED[f"ship.moored/{version}"], broken)


def test_event_catalog_that_is_inconsistent_with_its_upcasters_is_rejected_with_every_reason() -> None:
    catalog = {
        "ship.moored": Shape(4, ShipMoored),
        "ship.berthed": Shape(1, ShipMoored),
        "ship.sailed": Shape(1, ShipSailed, still_written=join_place),
        "Ship": Shape(0, Fact),
    }
    upcasts: dict[tuple[str, int], Rewrite] = {
        ("ship.moored", 2): split_place,
        ("ship.moored", 4): split_place,
        ("ship.sailed", 0): rename_vessel,
        ("ship.sunk", 1): rename_vessel,
    }

    with pytest.raises(BrokenCatalog) as refused:
        Shapes(catalog, upcasts)

    assert set(refused.value.objections) == {
        "ship.moored version 1 has no upcaster to version 2",
        "ship.moored version 3 has no upcaster to version 4",
        "ship.moored has an upcaster from version 4, but its newest version is 4",
        "ship.sailed has an upcaster from version 0, but its newest version is 1",
        "ship.sailed has no version before 1 that could still be written; remove still_written",
        "there is an upcaster of ship.sunk, which is not in the catalog",
        "ShipMoored is stored both as ship.moored and as ship.berthed",
        "Ship has version 0; versions begin at 1",
        "'Ship' is not a valid event type such as slot.claimed",
    }
    assert all(objection in str(refused.value) for objection in refused.value.objections)


ROLLING_OUT = CATALOG | {"ship.moored": Shape(3, ShipMoored, still_written=join_place)}


def test_release_that_introduces_an_event_version_reads_this_version_and_writes_the_previous_one() -> None:
    shapes = Shapes(ROLLING_OUT, UPCASTS)
    name, version, stored = shapes.encode(MOORED)

    assert (name, version, stored) == ("ship.moored", 2, '{"place":"north/7","ship":"Vasa"}')
    assert shapes.decode(name, version, stored) == MOORED
    assert shapes.decode("ship.moored", 3, canonical(MOORED)) == MOORED


def test_previous_release_reads_every_event_of_the_release_that_introduces_an_event_version() -> None:
    class ShipMooredBefore(Fact, frozen=True):
        place: str
        ship: str

    before = Shapes(
        {"ship.moored": Shape(2, ShipMooredBefore)}, {("ship.moored", 1): UPCASTS["ship.moored", 1]}
    )

    decoded = before.decode(*Shapes(ROLLING_OUT, UPCASTS).encode(MOORED))
    assert decoded == ShipMooredBefore(place="north/7", ship="Vasa")


def test_event_that_the_previous_version_of_its_type_cannot_represent_is_rejected() -> None:
    piloted = ShipMoored(quay="north", number=7, ship="Vasa", pilot="Ane")

    with pytest.raises(NotYetWritable, match=r"ship\.moored is still written as version 2"):
        Shapes(ROLLING_OUT, UPCASTS).encode(piloted)


GOLDEN = Corpus(
    CATALOG,
    UPCASTS,
    stored=STORED,
    released={key: digest(canonical(stored)) for key, stored in STORED.items()},
    read_today=dict.fromkeys(["ship.moored/1", "ship.moored/2"], STORED["ship.moored/3"]),
)


def without(entries: Mapping[str, object], key: str) -> dict[str, object]:
    return {other: entry for other, entry in entries.items() if other != key}


def test_golden_corpus_with_every_event_version_has_no_objections() -> None:
    assert list(GOLDEN.objections()) == []
    assert list(replace(GOLDEN, catalog=ROLLING_OUT).objections()) == []


@pytest.mark.parametrize("key", STORED)
def test_golden_corpus_without_an_example_of_an_event_version_names_the_missing_example(key: str) -> None:
    assert f"{key} has no example in facts.json" in replace(GOLDEN, stored=without(STORED, key)).objections()


def test_check_of_the_golden_corpus_names_each_example_that_the_event_catalog_cannot_decode() -> None:
    reduced = replace(GOLDEN, catalog={"ship.moored": CATALOG["ship.moored"]})

    assert list(reduced.objections()) == [
        "ship.sailed/1 has an example in facts.json, but the catalog cannot decode it"
    ]


@pytest.mark.parametrize("key", STORED)
def test_golden_corpus_with_a_changed_released_example_names_the_example(key: str) -> None:
    changed = replace(GOLDEN, stored=STORED | {key: {**STORED[key], "ship": "Mary Rose"}})

    assert (
        f"{key} differs from its released example; a released example must never change"
        in changed.objections()
    )


def test_golden_corpus_with_a_new_example_shows_the_line_missing_in_released_json() -> None:
    unlisted = {key: digest for key, digest in GOLDEN.released.items() if key != "ship.sailed/1"}

    (objection,) = replace(GOLDEN, released=unlisted).objections()
    assert objection == (
        "ship.sailed/1 is new; add its line to released.json:"
        f' "ship.sailed/1": "{GOLDEN.released["ship.sailed/1"]}"'
    )


def test_golden_corpus_with_a_changed_upcaster_names_every_affected_event_version() -> None:
    def split_differently(shape: JsonObject) -> JsonObject:
        return split_place(shape) | {"quay": "south"}

    changed = replace(GOLDEN, upcasts=UPCASTS | {("ship.moored", 2): split_differently})

    assert [objection.partition(" decodes to ")[0] for objection in changed.objections()] == [
        "ship.moored/1",
        "ship.moored/2",
    ]


def test_golden_corpus_without_the_upcast_result_of_an_older_event_version_shows_the_missing_line() -> None:
    (objection,) = replace(GOLDEN, read_today=without(GOLDEN.read_today, "ship.moored/1")).objections()
    assert objection == (
        'ship.moored/1 is an older version; add its line to read_today.json: "ship.moored/1": '
        '{"number":7,"pilot":null,"quay":"north","ship":"Vasa"}'
    )
