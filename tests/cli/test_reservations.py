"""`sliceplane reservations` on a real control plane."""

import json
from collections.abc import Callable

import pytest

from tests.cli.outcome import Outcome
from tests.servers.plane import ADMIN_KEY, RunningPlane
from tests.waiting import until

Run = Callable[..., Outcome]


@pytest.fixture
def admin(shared_plane: RunningPlane, unconfigured: Run, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Function that runs the command line with the API key of an admin of the real control plane."""
    monkeypatch.setenv("SLICEPLANE_URL", shared_plane.url)
    monkeypatch.setenv("SLICEPLANE_API_KEY", ADMIN_KEY)
    return unconfigured


def test_name_of_an_existing_entry_is_refused_if_a_new_entry_is_requested(admin: Run) -> None:
    published = admin("skus", "publish", "lab.large", "--new", "--vcpus", "8", "--memory-mib", "1024")
    assert published.code == 0, published
    refused = admin("skus", "publish", "lab.large", "--new", "--vcpus", "9", "--memory-mib", "1024")
    assert (refused.code, "sku_exists" in refused.err) == (1, True), refused
    assert admin("skus", "publish", "lab.large", "--vcpus", "9", "--memory-mib", "1024").code == 0


def test_list_of_reservations_shows_each_with_its_number_of_missing_slots_until_it_is_removed(
    admin: Run,
) -> None:
    assert admin("projects", "create", "vision").code == 0
    assert admin("reservations", "set", "vision", "lab.small", "4").code == 0
    assert admin("reservations", "set", "vision", "lab.small", "2").code == 0
    # No node has slots, so all of them are missing.
    head, row = admin("reservations", "list").out.splitlines()
    assert head.split() == ["PROJECT", "SKU", "SLOTS", "USED", "UNUSED", "SHORT", "BY"]
    assert row.split() == ["vision", "lab.small", "2", "0", "2", "2"]
    [listed] = json.loads(admin("reservations", "list", "-o", "json").out)["items"]
    assert (listed["project"], listed["sku"], listed["slots"], listed["unused"]) == (
        "vision",
        "lab.small",
        2,
        2,
    )
    until(lambda: "UNUSED SLOT-SECONDS" in admin("usage", "show").out, "the usage has the reservation")
    assert admin("usage", "show").out.splitlines()[-1].split()[:2] == ["vision", "lab.small"]
    parts = json.loads(admin("usage", "unused", "--project", "vision", "-o", "json").out)["items"]
    assert [(each["reserved"], each["held"], each["slots"]) for each in parts] == [(4, 0, 4), (2, 0, 2)]
    assert str(parts[0]["reserved_by"]) in admin("usage", "unused").out
    assert admin("reservations", "remove", "vision", "lab.small").code == 0
    assert "vision" not in admin("reservations", "list").out


def test_reservation_of_an_unknown_sku_or_project_or_of_no_slots_is_refused(admin: Run) -> None:
    assert admin("projects", "create", "speech").code == 0
    unknown = admin("reservations", "set", "speech", "other.sku", "1")
    assert unknown.code == 1
    assert "other.sku" in unknown.err
    missing = admin("reservations", "set", "nowhere", "lab.small", "1")
    assert missing.code == 1
    assert "nowhere" in missing.err
    none = admin("reservations", "set", "speech", "lab.small", "0")
    assert none.code == 2
    assert "SLOTS" in none.err
