"""Parts of the console with scripts, in Chromium: the preview of the create form, and the slider of time."""

from urllib.parse import parse_qs, urlparse

import pytest

from tests.api.node import KEY, admit
from tests.api.reporting import RunningAllocation
from tests.servers.plane import RunningPlane
from tests.web.test_event_pages import cordon_long_ago
from tests.web.visitors import Visitor

HOSTILE = "<img src=x onerror=\"document.title='run'\">"


def test_preview_follows_the_form_while_it_is_filled_in_and_creates_nothing(
    visitor: Visitor, running_plane: RunningPlane
) -> None:
    admit(running_plane, "n1", slots=2)
    position, page = running_plane.last_position(), visitor.page
    visitor.open("/allocations/new")
    preview = page.locator("#preview")
    page.get_by_label("SKU").select_option("lab.small")
    page.get_by_label("Slots, all on one node").fill("2")
    preview.get_by_text("It would be refused").wait_for()
    assert "SSH public keys" in preview.inner_text()
    page.get_by_label("SSH public keys").fill(KEY)
    preview.get_by_text("It would get n1/0, n1/1").wait_for()
    assert "0.02 USD per hour, 0.02 USD" in preview.inner_text()
    page.get_by_label("Lease, in hours").fill(HOSTILE[:8])
    preview.get_by_text("not a number of hours").wait_for()
    page.get_by_label("Lease, in hours").fill("2")
    page.get_by_label("Labels, one").fill("<script>x</script>")
    preview.get_by_text("<script>x</script>").wait_for()
    page.get_by_label("Labels, one").fill(f"team={HOSTILE}")
    preview.get_by_text("It would get").wait_for()
    page.get_by_label("Slots, all on one node").fill("9")
    preview.get_by_text("It would get no slots now").wait_for()
    assert page.title().startswith("Create")
    assert running_plane.last_position() - position <= 1, "only the session may be new"


def test_search_for_a_rare_event_continues_by_itself_until_its_end(
    visitor: Visitor, running_plane: RunningPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    cordoned, page = cordon_long_ago(running_plane, monkeypatch), visitor.page
    visitor.open("/events?type=node.cordoned")
    page.get_by_text("Searched back to").wait_for()
    page.get_by_role("link", name="node.cordoned").wait_for()
    assert page.locator(f"#e{cordoned}").count() == 1
    assert page.locator(".events tbody tr").count() == 1, "the row of the empty list is replaced"
    assert page.get_by_text("Searched back to").count() == 0
    assert "cursor" not in page.url


def test_slider_shows_the_state_at_the_chosen_time(visitor: Visitor, running_plane: RunningPlane) -> None:
    running = RunningAllocation(running_plane, admit(running_plane, "n1"))
    page = visitor.page
    visitor.open(f"/history?kind=allocation&name={running.id}")
    slider = page.get_by_label("Time", exact=True)
    slider.focus()
    page.keyboard.press("Home")
    page.wait_for_url("**at=*")
    page.get_by_role("heading", name="State").wait_for()
    at = parse_qs(urlparse(page.url).query)["at"][0]
    assert at.endswith("Z")
    page.get_by_label("Time", exact=True).focus()
    page.keyboard.press("End")
    page.wait_for_function("!location.search.includes('at=')")
    assert "active" in page.locator("main").inner_text()
