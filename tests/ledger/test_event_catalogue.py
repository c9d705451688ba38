"""docs/events.md tells every event from its type, and whatever a type does not tell is asked for."""

from pathlib import Path

import msgspec
import pytest

from deploy.catalogue.page import Page, Unexplained, page
from deploy.checks.generated import differences
from events.catalog import CATALOG
from events.facts import Fact
from events.shapes import JsonObject, Shape
from events.slots import SlotApproved, SlotClaimed
from events.upcasts import UPCASTS


class Unsaid(Fact, frozen=True):
    """It holds what nobody explains."""

    node_id: str
    ratio: float


def called_place(shape: JsonObject) -> JsonObject:
    """The slot was called
    its place."""
    return {"slot_id": shape.pop("place"), **shape}


def back_to_place(shape: JsonObject) -> JsonObject:
    return {"place": shape.pop("slot_id"), **shape}


def section(name: str, text: str) -> str:
    return text.partition(f"### `{name}`\n")[2].partition("\n##")[0]


def test_every_event_of_the_catalog_has_its_section() -> None:
    text = page().text()

    assert [line[5:-1] for line in text.splitlines() if line.startswith("### `")] == sorted(
        CATALOG, key=lambda name: text.index(f"[`{name}`]")
    )


def test_a_section_tells_version_fields_and_claims() -> None:
    told = section("slot.approved", page().text())

    assert "Version 1, `SlotApproved`." in told
    assert "| `sku` | SKU name |" in told
    assert "| `network` | [slot network](#slot-network) |" in told
    assert "Takes the claim `mac` on `{network.l2_domain}/{network.mac_address}`" in told
    assert "Frees the claim `slot` on `{slot_id}`." in section("slot.released", page().text())


def test_an_older_version_is_told_by_its_upcaster_and_so_is_one_still_written() -> None:
    catalog = {"slot.claimed": Shape(2, SlotClaimed, still_written=back_to_place)}
    told = section("slot.claimed", Page(catalog, {("slot.claimed", 1): called_place}).text())

    assert "Version 2, `SlotClaimed`. Version 1 is what this release writes." in told
    assert "Version 1: The slot was called its place." in told


def test_what_the_types_leave_unsaid_is_named_all_at_once() -> None:
    catalog = {"slot.unsaid": Shape(2, Unsaid), "slot.approved": Shape(1, SlotApproved)}

    with pytest.raises(Unexplained) as refused:
        Page(catalog, {("slot.unsaid", 1): back_to_place}).text()

    assert [objection.partition(",")[0] for objection in refused.value.objections] == [
        f"{__name__} does not name its stream: its docstring begins '... Stream: `name`.'",
        "slot.unsaid: Unsaid.node_id has no docstring below it",
        "slot.unsaid: Unsaid.ratio has no docstring below it",
        "slot.unsaid: Unsaid.ratio: <class 'float'> has no words in deploy.catalogue.types",
        "slot.unsaid version 1: the upcaster has no docstring that says what was different",
    ]


def test_a_page_behind_its_types_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "events.md"
    fewer = {name: shape for name, shape in CATALOG.items() if name != "slot.withheld"}
    path.write_text(Page(fewer, UPCASTS).text(), encoding="utf-8")

    assert "+### `slot.withheld`" in differences(page().text(), path)
    path.write_text(page().text(), encoding="utf-8")
    assert differences(page().text(), path) == []


def test_a_page_that_is_not_there_is_noticed(tmp_path: Path) -> None:
    assert differences(page().text(), tmp_path / "events.md") != []


def test_the_class_docstring_of_every_fact_is_its_own() -> None:
    texts = [shape.fact.__doc__ for shape in CATALOG.values()]

    assert len(set(texts)) == len(texts)
    assert not {msgspec.Struct.__doc__, Fact.__doc__} & set(texts)
