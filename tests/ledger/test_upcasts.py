"""A type that changed its shape twice is read through its upcasters, whatever version a row is of.

These tests have a catalog of their own, harder to read than any of the product. A berth was once stored with the
whole place in one field, then with a renamed field, and is today told by quay and number.
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
    """Version 1 called the ship a vessel."""
    return {"ship": shape.pop("vessel"), **shape}


def split_place(shape: JsonObject) -> JsonObject:
    """Until version 2 quay and number were one word."""
    quay, _, number = shape.pop("place").partition("/")
    return {"quay": quay, "number": int(number), "pilot": None, **shape}


def join_place(shape: JsonObject) -> JsonObject:
    """What a release writes that reads version 3 already and writes version 2 still."""
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
def test_every_version_reads_as_the_fact_of_today(version: int) -> None:
    assert read(version, STORED[f"ship.moored/{version}"]) == MOORED


def test_what_is_recorded_now_is_of_the_newest_version() -> None:
    assert Shapes(CATALOG, UPCASTS).encode(MOORED) == (
        "ship.moored",
        3,
        '{"number":7,"pilot":null,"quay":"north","ship":"Vasa"}',
    )


@pytest.mark.parametrize("version", [0, 4])
def test_a_version_that_this_release_does_not_know_is_unknown_and_not_guessed(version: int) -> None:
    with pytest.raises(UnknownFact, match=rf"ship\.moored' version {version}$"):
        read(version, STORED["ship.moored/3"])


@pytest.mark.parametrize(
    ("version", "stored", "why"),
    [
        (1, {"place": "north/7"}, "the upcaster from version 1 failed with KeyError 'vessel'"),
        (1, {"place": "north", "vessel": "Vasa"}, "the upcaster from version 2 failed with invalid literal"),
        (2, {"place": 7, "ship": "Vasa"}, "the upcaster from version 2 failed with 'int' object has no"),
        (2, {"place": "north/7", "ship": None}, r"Expected `str`, got `null` - at `\$\.ship`"),
        (2, {"place": "north/7", "ship": "Vasa", "tug": 1}, "contains unknown field `tug`"),
        (3, {"quay": "north", "number": 7}, "missing required field `ship`"),
        (1, ["north/7", "Vasa"], "Expected `object`, got `array`"),
    ],
)
def test_a_row_that_is_not_of_its_version_is_named_with_the_reason(
    version: int, stored: object, why: str
) -> None:
    with pytest.raises(UnreadableFact, match=rf"^ship\.moored version {version} cannot be read: .*{why}"):
        read(version, stored)


@pytest.mark.parametrize("stored", ["", "{", '{"quay":"north"'])
@pytest.mark.parametrize("version", [1, 3])
def test_a_row_that_is_no_json_is_named(version: int, stored: str) -> None:
    with pytest.raises(UnreadableFact, match=rf"^ship\.moored version {version} cannot be read: Input data"):
        Shapes(CATALOG, UPCASTS).decode("ship.moored", version, stored)


@pytest.mark.parametrize(
    ("nonsense", "why"),
    [
        (lambda shape: {**shape, "number": "seven"}, r"Expected `int`, got `str` - at `\$\.number`"),
        (lambda _: {}, "missing required field `quay`"),
        (lambda _: None, "the upcaster from version 2 returned no object"),
        (lambda shape: [shape], "the upcaster from version 2 returned no object"),
    ],
)
@pytest.mark.parametrize("version", [1, 2])
def test_an_upcaster_that_returns_nonsense_is_found_out(version: int, nonsense: Rewrite, why: str) -> None:
    broken = {**UPCASTS, ("ship.moored", 2): lambda shape: nonsense(split_place(shape))}

    with pytest.raises(UnreadableFact, match=rf"^ship\.moored version {version} cannot be read: .*{why}"):
        read(version, STORED[f"ship.moored/{version}"], broken)


def test_tables_that_do_not_fit_are_refused_with_every_reason_at_once() -> None:
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
        "ship.moored has an upcaster from version 4, and its newest is 4",
        "ship.sailed has an upcaster from version 0, and its newest is 1",
        "ship.sailed has no version before 1 that could still be written",
        "there is an upcaster of ship.sunk, which is not in the catalog",
        "ShipMoored is stored both as ship.moored and as ship.berthed",
        "Ship has version 0, and versions count from 1",
        "'Ship' is no name such as slot.claimed",
    }
    assert all(objection in str(refused.value) for objection in refused.value.objections)


ROLLING_OUT = CATALOG | {"ship.moored": Shape(3, ShipMoored, still_written=join_place)}


def test_the_release_that_brings_a_shape_reads_it_and_writes_the_one_before() -> None:
    shapes = Shapes(ROLLING_OUT, UPCASTS)
    name, version, stored = shapes.encode(MOORED)

    assert (name, version, stored) == ("ship.moored", 2, '{"place":"north/7","ship":"Vasa"}')
    assert shapes.decode(name, version, stored) == MOORED
    assert shapes.decode("ship.moored", 3, canonical(MOORED)) == MOORED


def test_the_release_before_reads_all_that_the_release_that_brings_a_shape_writes() -> None:
    class ShipMooredThen(Fact, frozen=True):
        place: str
        ship: str

    before = Shapes(
        {"ship.moored": Shape(2, ShipMooredThen)}, {("ship.moored", 1): UPCASTS["ship.moored", 1]}
    )

    read_then = before.decode(*Shapes(ROLLING_OUT, UPCASTS).encode(MOORED))
    assert read_then == ShipMooredThen(place="north/7", ship="Vasa")


def test_a_fact_that_the_older_shape_would_cut_down_is_refused_and_not_written() -> None:
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


def test_a_corpus_with_every_version_has_nothing_to_object_to() -> None:
    assert list(GOLDEN.objections()) == []
    assert list(replace(GOLDEN, catalog=ROLLING_OUT).objections()) == []


@pytest.mark.parametrize("key", STORED)
def test_every_version_up_to_todays_needs_its_example(key: str) -> None:
    assert f"{key} has no example in facts.json" in replace(GOLDEN, stored=without(STORED, key)).objections()


def test_an_example_that_nothing_reads_any_more_is_missed() -> None:
    forgetful = replace(GOLDEN, catalog={"ship.moored": CATALOG["ship.moored"]})

    assert list(forgetful.objections()) == [
        "ship.sailed/1 has an example in facts.json, and nothing reads it"
    ]


@pytest.mark.parametrize("key", STORED)
def test_a_released_example_never_changes(key: str) -> None:
    changed = replace(GOLDEN, stored=STORED | {key: {**STORED[key], "ship": "Mary Rose"}})

    assert f"{key} was released with another example, and no example ever changes" in changed.objections()


def test_a_new_example_is_told_its_line_of_the_release_list() -> None:
    unlisted = {key: digest for key, digest in GOLDEN.released.items() if key != "ship.sailed/1"}

    (objection,) = replace(GOLDEN, released=unlisted).objections()
    assert objection == (
        "ship.sailed/1 is new and lacks its line in released.json,"
        f' "ship.sailed/1": "{GOLDEN.released["ship.sailed/1"]}"'
    )


def test_an_upcaster_that_changes_its_mind_about_history_is_seen() -> None:
    def split_otherwise(shape: JsonObject) -> JsonObject:
        return split_place(shape) | {"quay": "south"}

    changed = replace(GOLDEN, upcasts=UPCASTS | {("ship.moored", 2): split_otherwise})

    assert [objection.partition(" reads as ")[0] for objection in changed.objections()] == [
        "ship.moored/1",
        "ship.moored/2",
    ]


def test_what_an_older_version_reads_as_must_be_written_down() -> None:
    (objection,) = replace(GOLDEN, read_today=without(GOLDEN.read_today, "ship.moored/1")).objections()
    assert objection == (
        'ship.moored/1 is of an older version and lacks its line in read_today.json, "ship.moored/1": '
        '{"number":7,"pilot":null,"quay":"north","ship":"Vasa"}'
    )
