"""Pages of allocations that were released or have failed: the end of the lease, and which consoles they still have."""

import re
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta

from control_plane.web.pages.allocations import LOG_KEPT, is_log_deleted, lease_end
from tasks.streams import KEPT_LOG_DAYS
from tests.api.access.principals import issue
from tests.api.broken_nodes import Node, accepted_allocation
from tests.api.node import admit
from tests.api.nodes.test_serial_logs import LogRequests
from tests.api.reporting import RunningAllocation
from tests.servers.plane import RunningPlane
from tests.waiting import until
from tests.web.browsing import logged_in


def test_ended_allocation_shows_the_end_of_its_lease_and_has_no_consoles_or_commands_of_actions(
    emptied_plane: RunningPlane,
) -> None:
    node, browser = admit(emptied_plane, "n1"), logged_in(emptied_plane)
    ended = RunningAllocation(emptied_plane, node, labels={"kind": "ended"})
    own = f"/allocations/{ended.id}"
    consoles = {f"/ui{own}/{page}?slot=0" for page in ("console", "display", "serial-log")}
    active = browser.open(own)
    assert "Slot Ready MAC Reserved address Observed address" in active.text
    assert "Report fault and release…" in active.text, "the button names that it releases the allocation"
    assert "Lease ends 2" in active.text
    assert consoles <= set(active.attributes("a", "href"))
    assert "the allocation is active already" in active.text
    assert f"/ui{own}/start" not in active.attributes("a", "href")
    assert f"/ui{own}/release" in active.attributes("a", "href")
    assert f"sliceplane allocations serial-log {ended.id}" in active.text
    assert f"sliceplane ssh {ended.id}" in active.text
    assert f"sliceplane allocations release {ended.id}" in active.text
    assert "sliceplane allocations start" not in active.text
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
    assert "Slots released 2" in released.text
    assert re.search(r"Former slots The allocation held these slots until \S+ \S+\. Other", released.text)
    assert "Former slots" not in releasing.text
    assert "Slot MAC Reserved address Consoles n1/0" in released.text, "a former slot has no state"
    assert "Reason of the release: release was requested by" in released.text
    assert "notice bad" not in released.attributes("p", "class")
    possible = "a fault can be reported only while the allocation still holds its slots"
    assert (
        f"{possible}. After that, an admin can retire the faulty slot on the page of the slot (code no_slot_held)"
        in released.text
    )
    assert "Slices accept logins only while the allocation is active." in released.text
    form = browser.open(f"{own}/release").text
    assert "Not possible: the allocation is released already" in form
    assert (
        "the allocation is released already"
        in browser.open(f"/bulk/allocations?action=release&item={ended.id}").text
    )
    assert "the allocation is released already" in released.text
    assert f"/ui{own}/release" not in released.attributes("a", "href")
    assert consoles & set(released.attributes("a", "href")) == {f"/ui{own}/serial-log?slot=0"}
    assert re.findall(r"sliceplane \S+ \S+ alc-", released.text) == [
        "sliceplane allocations show alc-",
        "sliceplane allocations watch alc-",
        "sliceplane allocations serial-log alc-",
    ]
    assert "sliceplane ssh" not in released.text
    until(lambda: "released" in browser.open("/allocations?label=kind=ended").text, "the release is listed")
    listed = browser.open("/allocations?label=kind=ended").text
    assert f"formerly {ended.slot['slot_id']} ended kind=ended" in listed


def test_failed_allocation_has_its_serial_log_and_shows_its_slots_as_current_until_they_are_released(
    emptied_plane: RunningPlane,
) -> None:
    node, browser = admit(emptied_plane, "n1"), logged_in(emptied_plane)
    failed = RunningAllocation(emptied_plane, node)
    own = f"/allocations/{failed.id}"
    failed.report("slice.failed", reason={"code": "machine_absent", "message": "the machine is absent"})
    page = browser.open(own)
    assert "Lease ended" in page.text
    fault = browser.open(f"{own}/report-fault").text
    assert f"Report fault of allocation {failed.id}" in fault
    assert (
        "Effect: The allocation is failed already. While it still holds its slots, the fault can be recorded"
        in fault
    )
    assert "are deleted" not in fault
    assert "the slices are being removed, or are removed (code slice_not_on_node)" in page.text
    assert "▲ Reason of the failure: the machine is absent (code machine_absent)" in page.text
    assert "notice bad" in page.attributes("p", "class")
    assert "Former slots" not in page.text
    assert f"/ui{own}/serial-log?slot=0" in page.attributes("a", "href")
    failed.report("slice.removed", absent=["machine"])
    page = browser.open(own)
    assert f"/ui{own}/serial-log?slot=0" in page.attributes("a", "href")
    assert "failed start" not in page.text, "the allocation was active"
    assert "slice_not_on_node" not in page.text.partition("Former slots")[2]
    until(lambda: "formerly n1/0" in browser.open("/allocations").text, "the list has no current slot")
    kept = "Tasks that are done or superseded are removed 1 day after their end"
    assert (kept in page.text, "No tasks." in page.text) == (True, False)
    emptied_plane.rows("delete from work.task where allocation_id = %(id)s returning 1", id=failed.id)
    assert (
        "No tasks. Tasks that are done or superseded are removed 1 day after their end, other ended tasks after 7"
        " days; the newest task of each slot is kept." in browser.open(own).text
    )
    auditor = logged_in(emptied_plane, issue(emptied_plane, "reader", "auditor").secret)
    assert "Former slots" in auditor.open(own).text, "also for a caller that may not report a fault"
    assert f"/ui{own}/serial-log?slot=0" not in auditor.open(own).attributes("a", "href")
    assert "formerly n1/0" in auditor.open("/allocations").text
    past = browser.open(f"{own}?at=position:{emptied_plane.last_position()}")
    assert "Former slots" in past.text
    assert f"/ui{own}/serial-log?slot=0" not in past.attributes("a", "href")


def test_page_of_a_failed_start_links_the_log_of_each_placement_and_states_that_it_is_not_kept(
    emptied_plane: RunningPlane,
) -> None:
    first, browser = Node(emptied_plane, "n1", slots=1), logged_in(emptied_plane)
    allocation = accepted_allocation(emptied_plane)
    second = Node(emptied_plane, "n2", slots=1)
    counted = "select coalesce(sum(free), 0) from work.slot_counts"
    until(lambda: emptied_plane.rows(counted) == [(1,)], "the free slots are counted")
    own = f"/allocations/{allocation['id']}"
    first.report_failed(allocation)
    first.report_removed(allocation)
    again = dict(emptied_plane.client().get(own).json())
    second.report_failed(again)
    second.report_removed(again)
    page = browser.open(own)
    links = [f"/ui{own}/serial-log?slot=0&attempt=1", f"/ui{own}/serial-log?slot=0"]
    assert [each for each in page.attributes("a", "href") if "serial-log" in each] == links
    assert "Serial log of the failed start: n1/0" in page.text
    assert "Serial log of the failed start" in page.text.partition("Former slots")[2]
    requests = LogRequests(emptied_plane, allocation["id"])
    with ThreadPoolExecutor(1) as pool:
        opened = pool.submit(browser.open, f"{own}/serial-log?slot=0&attempt=1")
        reason = {"code": "slice_not_on_node", "message": "the log is not kept"}
        requests.answer(stream_id=requests.requested_stream(), failure=reason)
        assert "node n1 has no serial log of" in opened.result(20).text
        opened = pool.submit(browser.open, f"{own}/serial-log?slot=0&attempt=1")
        requests.answer(stream_id=requests.requested_stream(), text="no init found", kept_bytes=13)
        shown = opened.result(20)
    assert "no init found" in shown.text
    assert links[0] in shown.attributes("a", "href")
    assert f"sliceplane allocations serial-log {allocation['id']} --slot 0 --attempt 1" in shown.text


def test_serial_log_is_not_linked_after_the_time_for_which_nodes_keep_it() -> None:
    assert timedelta(days=KEPT_LOG_DAYS) == LOG_KEPT
    old, recent = (
        datetime.now(UTC) - timedelta(days=days) for days in (KEPT_LOG_DAYS + 1, KEPT_LOG_DAYS - 1)
    )
    assert is_log_deleted(old.isoformat())
    assert not is_log_deleted(recent.isoformat())
    assert not is_log_deleted(None)


def test_lease_ended_when_its_end_was_recorded_but_not_after_its_planned_end() -> None:
    planned, early, late = "2026-01-01T10:00:00.5Z", "2026-01-01T09:59:00Z", "2026-01-01T10:00:01Z"
    for recorded, ended in ((early, early), (late, planned)):
        events = [{"type": "allocation.lease_ended", "recorded_at": recorded}]
        assert lease_end({"lease": {"expires_at": planned}}, events) == ended
    assert lease_end({"lease": {"expires_at": planned}}, []) is None
