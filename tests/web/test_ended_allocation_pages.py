"""Pages of allocations that were released or have failed: the end of the lease, and which consoles they still have."""

import re

from tests.api.node import admit
from tests.api.reporting import RunningAllocation
from tests.servers.plane import RunningPlane
from tests.waiting import until
from tests.web.browsing import logged_in


def test_ended_allocation_shows_the_end_of_its_lease_and_has_no_consoles(emptied_plane: RunningPlane) -> None:
    node, browser = admit(emptied_plane, "n1"), logged_in(emptied_plane)
    ended = RunningAllocation(emptied_plane, node, labels={"kind": "ended"})
    own = f"/allocations/{ended.id}"
    consoles = {f"/ui{own}/{page}?slot=0" for page in ("console", "display", "serial-log")}
    active = browser.open(own)
    assert "Lease ends 2" in active.text
    assert consoles <= set(active.attributes("a", "href"))
    assert "The allocation is active already." in active.text
    assert f"/ui{own}/start" not in active.attributes("a", "href")
    assert f"/ui{own}/release" in active.attributes("a", "href")
    emptied_plane.client().delete(own)
    releasing = browser.open(own)
    assert re.search(r"Lease ended \S+ \S+ \d+ s ago, granted", releasing.text)
    assert consoles & set(releasing.attributes("a", "href")) == {f"/ui{own}/serial-log?slot=0"}
    refused = browser.open(f"{own}/console")
    assert "slice_not_on_node" in refused.text
    assert f"/ui{own}" in refused.attributes("a", "href")
    ended.report("slice.removed", absent=["machine"])
    released = browser.open(own)
    assert "Lease ended" in released.text
    assert "The allocation is released already." in released.text
    assert f"/ui{own}/release" not in released.attributes("a", "href")
    assert not consoles & set(released.attributes("a", "href"))
    until(lambda: "released" in browser.open("/allocations?label=kind=ended").text, "the release is listed")
    assert " ended kind=ended" in browser.open("/allocations?label=kind=ended").text


def test_failed_allocation_keeps_the_serial_log_until_its_slots_are_empty(
    emptied_plane: RunningPlane,
) -> None:
    node, browser = admit(emptied_plane, "n1"), logged_in(emptied_plane)
    failed = RunningAllocation(emptied_plane, node)
    own = f"/allocations/{failed.id}"
    failed.report("slice.failed", reason={"code": "machine_absent", "message": "the machine is absent"})
    page = browser.open(own)
    assert "Lease ended" in page.text
    assert "the slices are being removed, or are removed (code slice_not_on_node)" in page.text
    assert f"/ui{own}/serial-log?slot=0" in page.attributes("a", "href")
    failed.report("slice.removed", absent=["machine"])
    page = browser.open(own)
    assert f"/ui{own}/serial-log?slot=0" not in page.attributes("a", "href")
    assert "slice_not_on_node" not in page.text.partition("Slots")[2]
