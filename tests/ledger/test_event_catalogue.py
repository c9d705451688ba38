"""Tests that docs/events.md is generated from the event types, and that a type without the required descriptions is
reported.
"""

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


class Undescribed(Fact, frozen=True):
    """Event type without field descriptions."""

    node_id: str
    ratio: float


def rename_place(shape: JsonObject) -> JsonObject:
    """The field `slot_id` was called
    `place`."""
    return {"slot_id": shape.pop("place"), **shape}


def restore_place(shape: JsonObject) -> JsonObject:
    return {"place": shape.pop("slot_id"), **shape}


def section(name: str, text: str) -> str:
    return text.partition(f"### `{name}`\n")[2].partition("\n##")[0]


def test_catalogue_page_has_a_section_for_every_event_type_of_the_catalog() -> None:
    text = page().text()

    assert [line[5:-1] for line in text.splitlines() if line.startswith("### `")] == sorted(
        CATALOG, key=lambda name: text.index(f"[`{name}`]")
    )


def test_catalogue_section_of_an_event_type_shows_its_version_fields_and_claims() -> None:
    shown = section("slot.approved", page().text())

    assert "Version 2, `SlotApproved`." in shown
    assert "| `skus` | list: SKU name |" in shown
    assert "| `network` | [slot network](#slot-network) |" in shown
    assert "Takes the claim `mac` on `{network.l2_domain}/{network.mac_address}`" in shown
    assert "Frees the claim `slot` on `{slot_id}`." in section("slot.released", page().text())


def test_catalogue_section_of_an_event_that_claims_a_public_port_shows_the_fields_of_the_claim() -> None:
    shown = section("ingress.reserved", page().text())

    port = "{rule.service.protocol}/{rule.public_address}:{rule.service.public_port}"
    assert f"Takes the claim `port` on `{port}`." in shown


def test_catalogue_section_of_a_changed_event_type_shows_its_upcaster_and_the_written_version() -> None:
    catalog = {"slot.claimed": Shape(2, SlotClaimed, still_written=restore_place)}
    shown = section("slot.claimed", Page(catalog, {("slot.claimed", 1): rename_place}).text())

    assert "Version 2, `SlotClaimed`. This release writes version 1." in shown
    assert "Version 1: The field `slot_id` was called `place`." in shown


def test_catalogue_page_of_event_types_without_descriptions_raises_every_objection_at_once() -> None:
    catalog = {"slot.undescribed": Shape(2, Undescribed), "slot.approved": Shape(1, SlotApproved)}

    with pytest.raises(Unexplained) as refused:
        Page(catalog, {("slot.undescribed", 1): restore_place}).text()

    assert [objection.partition(",")[0] for objection in refused.value.objections] == [
        f"{__name__} does not name its stream: begin its docstring with '... Stream: `name`.'",
        "slot.undescribed: Undescribed.node_id has no docstring below it",
        "slot.undescribed: Undescribed.ratio has no docstring below it",
        "slot.undescribed: Undescribed.ratio: the type <class 'float'> has no description; add one to deploy.catalogue.types",
        "slot.undescribed version 1: the upcaster has no docstring that describes the difference",
    ]


def test_catalogue_page_file_that_lacks_an_event_type_differs_from_the_generated_page(tmp_path: Path) -> None:
    path = tmp_path / "events.md"
    fewer = {name: shape for name, shape in CATALOG.items() if name != "slot.quarantined"}
    path.write_text(Page(fewer, UPCASTS).text(), encoding="utf-8")

    assert "+### `slot.quarantined`" in differences(page().text(), path)
    path.write_text(page().text(), encoding="utf-8")
    assert differences(page().text(), path) == []


def test_missing_catalogue_file_differs_from_the_generated_page(tmp_path: Path) -> None:
    assert differences(page().text(), tmp_path / "events.md") != []


def test_every_event_class_of_the_catalog_has_its_own_docstring() -> None:
    texts = [shape.fact.__doc__ for shape in CATALOG.values()]

    assert len(set(texts)) == len(texts)
    assert not {msgspec.Struct.__doc__, Fact.__doc__} & set(texts)
