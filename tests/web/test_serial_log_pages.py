"""The page of a serial log, with hostile output of a guest."""

from concurrent.futures import ThreadPoolExecutor

from tests.api.nodes.test_serial_logs import LogSite
from tests.servers.plane import RunningPlane
from tests.web.browsing import logged_in

HOSTILE = "<script>alert(1)</script>\x1b[31mred\x1b[0m \x1b]0;title\x07{{ 7 * 7 }}\x08\r\n"


def test_page_of_a_serial_log_shows_the_output_without_markup_and_control_sequences(
    emptied_plane: RunningPlane,
) -> None:
    site = LogSite(emptied_plane)
    browser = logged_in(site.plane)
    own = f"/allocations/{site.allocation.id}"
    assert f"/ui{own}/serial-log?slot=0" in browser.open(own).attributes("a", "href")
    with ThreadPoolExecutor(1) as pool:
        opened = pool.submit(browser.open, f"{own}/serial-log?slot=0")
        site.answer(stream_id=site.requested_stream(), text=HOSTILE, kept_bytes=2_000_000)
        page = opened.result(20)
    assert page.status == 200, page.text
    assert "<script>alert(1)</script>red {{ 7 * 7 }} " in page.text
    assert "Log size on n1 2,000,000 bytes; older output is left out Read at 2" in page.text
    pages = {f"/ui{own}", f"/ui{own}/console?slot=0", f"/ui{own}/display?slot=0"}
    assert pages <= set(page.attributes("a", "href"))
    assert "title" not in page.text.partition("Output")[2].partition("Command")[0]
