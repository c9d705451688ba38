"""Decisions about the catalogue: publish, retire, use for an allocation, and choose the SKU of a slot."""

from itertools import product
from typing import Final, get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from control_plane.decisions.catalogue import publish_again, published, retire, specify
from control_plane.decisions.placing.suitability import suggested
from deploy.embedded.lab_catalogue import GUEST, SKUS, SMALL
from events.allocations import AllocationSpecified
from events.entries import AppProfileContent, Entry, EntryContent, EntryFact, ImageContent, SkuContent
from events.offers import NOTHING
from events.slots import SlotHardware
from events.values import AppProfileName, EntryKind, Fabric, NetworkMode, SkuName, stream_of_entry
from read_models.catalogue import entry_in, patch
from read_models.inline import CATALOGUE
from read_models.rows import folded
from tests.decisions.histories import ID, REQUESTED

PROFILE: Final = AppProfileContent("training", ("ib", "roce"))
CONTENTS: Final[dict[EntryKind, EntryContent]] = {"sku": SMALL, "image": GUEST, "app_profile": PROFILE}
OTHERS: Final[dict[EntryKind, EntryContent]] = {
    "sku": msgspec.structs.replace(SMALL, vcpus=2),
    "image": msgspec.structs.replace(GUEST, default_user="debian"),
    "app_profile": AppProfileContent("training", ("ib",)),
}
KINDS: Final[tuple[EntryKind, ...]] = get_args(EntryKind)
MODES: Final[tuple[NetworkMode, ...]] = get_args(NetworkMode)
FABRICS: Final[tuple[Fabric, ...]] = get_args(Fabric)
NAME: Final = "training"


def entry(kind: EntryKind, content: EntryContent | None = None, *, retired: str | None = None) -> Entry:
    return Entry(kind, NAME, 1, 1, content or CONTENTS[kind], retired)


def sku_entry(name: str, content: SkuContent) -> Entry:
    return Entry("sku", name, 1, 1, content, None)


@pytest.mark.parametrize("kind", KINDS)
def test_new_content_of_an_offered_entry_is_published_as_its_next_version(kind: EntryKind) -> None:
    assert publish_again(entry(kind), OTHERS[kind]) == (published(NAME, 2, OTHERS[kind]),)


@pytest.mark.parametrize("kind", KINDS)
def test_unchanged_content_is_published_as_a_further_version_only_if_the_entry_is_retired(
    kind: EntryKind,
) -> None:
    assert publish_again(entry(kind), CONTENTS[kind]) == ()
    again = publish_again(entry(kind, retired="old"), CONTENTS[kind])
    assert again == (published(NAME, 2, CONTENTS[kind]),)


@pytest.mark.parametrize("kind", KINDS)
def test_retiring_a_retired_entry_changes_nothing(kind: EntryKind) -> None:
    [fact] = retire(entry(kind), "old")
    assert (fact.name, fact.reason) == (NAME, "old")
    assert retire(entry(kind, retired="old"), "again") == ()


steps = st.lists(st.sampled_from(["publish", "publish other", "retire"]), max_size=12)


@given(st.sampled_from(KINDS), steps)
def test_read_model_row_of_an_entry_has_its_state_after_any_sequence_of_decisions(
    kind: EntryKind, done: list[str]
) -> None:
    facts: list[EntryFact] = [published(NAME, 1, CONTENTS[kind])]
    state = entry(kind)
    for step in done:
        if step == "retire":
            facts += retire(state, "old")
            state = state._replace(stream_version=len(facts), retired="old")
        else:
            content = (CONTENTS if step == "publish" else OTHERS)[kind]
            news = publish_again(state, content)
            facts += news
            state = Entry(kind, NAME, len(facts), state.version + len(news), content, None)
    row = folded(CATALOGUE.table, [patch(at, fact) for at, fact in enumerate(facts, 1)])
    assert row is not None
    assert (entry_in(row), row["entry"]) == (state, stream_of_entry(kind, NAME))


skus = st.builds(
    lambda disk, fabric, modes: msgspec.structs.replace(
        SMALL, disk_gib=disk, fabric=fabric, network_modes=tuple(sorted(modes))
    ),
    st.integers(0, 3),
    st.sampled_from(FABRICS),
    st.sets(st.sampled_from(MODES), min_size=1),
)
GUESTS: Final = (
    GUEST,
    msgspec.structs.replace(GUEST, format="qcow2", size_bytes=9 * 2**30),
    msgspec.structs.replace(GUEST, format="raw", size_bytes=2**30 + 1),
)
images = st.builds(
    lambda guest, disk: msgspec.structs.replace(guest, minimum_disk_gib=disk),
    st.sampled_from(GUESTS),
    st.integers(0, 3),
)
profiles = st.builds(
    AppProfileContent, st.just(""), st.lists(st.sampled_from(FABRICS), min_size=1, unique=True).map(tuple)
)
reasons = st.none() | st.just("old")


def _needed_gib(image: ImageContent) -> int:
    """Return the size in GiB of the smallest root disk for an image of `GUESTS`: a raw file needs its own size, but the
    disk in a qcow2 file may be smaller than the file.
    """
    return max({"kernel": 0, "qcow2": 1, "raw": 2}[image.format], image.minimum_disk_gib)


@given(
    st.tuples(st.none() | skus, reasons),
    st.tuples(st.none() | images, reasons),
    st.none() | st.tuples(st.none() | profiles, reasons),
    st.sampled_from(MODES),
)
def test_specification_of_an_allocation_is_made_from_its_catalogue_entries_or_refused_with_every_objection(
    of_sku: tuple[SkuContent | None, str | None],
    of_image: tuple[ImageContent | None, str | None],
    of_profile: tuple[AppProfileContent | None, str | None] | None,
    mode: NetworkMode,
) -> None:
    sku, image, with_profile = of_sku[0], of_image[0], of_profile is not None
    profile = of_profile[0] if of_profile else None
    contents: dict[EntryKind, tuple[EntryContent | None, str | None]] = {
        "sku": of_sku,
        "image": of_image,
        "app_profile": of_profile or (None, None),
    }
    used = [kind for kind in KINDS if kind != "app_profile" or with_profile]
    found = {
        kind: entry(kind, content, retired=retired)
        for kind, (content, retired) in contents.items()
        if content is not None and kind in used
    }
    expected = {f"unknown_{kind}" for kind in used if kind not in found}
    expected |= {f"{kind}_retired" for kind in used if kind in found and found[kind].retired is not None}
    if sku is not None and mode not in sku.network_modes:
        expected.add("network_mode_not_allowed")
    if sku is not None and image is not None and _needed_gib(image) > sku.disk_gib:
        expected.add("image_too_large")
    if sku is not None and profile is not None and sku.fabric not in profile.fabrics:
        expected.add("no_common_fabric")
    request = msgspec.structs.replace(REQUESTED, network_mode=mode)
    specified = specify(request, AppProfileName(NAME) if with_profile else None, found)
    if isinstance(specified, AllocationSpecified):
        assert expected == set()
        assert (specified.allocation_id, specified.sku.content, specified.image.content) == (ID, sku, image)
        assert (specified.app_profile is not None) == with_profile
    else:
        codes = [each.code for each in specified]
        assert sorted(codes) == sorted(expected)
        assert codes


def test_suggested_sku_of_a_slot_is_the_largest_sku_that_its_hardware_allows() -> None:
    fits = {
        memory: suggested(SlotHardware(1, memory, "slice0"), NOTHING, SKUS.items())
        for memory in (95, 96, 191, 192, 4096)
    }
    small, medium = SkuName("lab.small"), SkuName("lab.medium")
    assert fits == {95: None, 96: small, 191: small, 192: medium, 4096: medium}


def test_suggested_sku_does_not_depend_on_the_order_of_the_catalogue() -> None:
    sizes = [(vcpus, memory) for vcpus, memory in product((1, 2), (96, 192))]
    offered = [
        (SkuName(f"s{vcpus}-{memory}"), msgspec.structs.replace(SMALL, vcpus=vcpus, memory_mib=memory))
        for vcpus, memory in sizes
    ]
    hardware = SlotHardware(2, 192, "slice0")
    assert suggested(hardware, NOTHING, offered) == suggested(hardware, NOTHING, offered[::-1]) == "s2-192"
