"""`./dev screenshots`: pictures of the pages in Chromium."""

import json
import struct
from pathlib import Path

import pytest

from deploy.embedded.client import Api
from deploy.screenshots.__main__ import main
from deploy.screenshots.pages import pages
from tests.api.node import admit
from tests.api.reporting import RunningAllocation
from tests.servers.chromium import require_chromium
from tests.servers.plane import ADMIN_KEY, TLS_CONTEXT, RunningPlane
from tests.web.browsing import logged_in


def test_every_page_of_the_screenshots_exists(running_plane: RunningPlane) -> None:
    running = RunningAllocation(running_plane, admit(running_plane, "n1"), labels={"team": "a"})
    with running_plane.client() as admin:
        assert admin.put("/projects/default/reservations/lab.small", json={"slots": 2}).is_success
    admin_browser = logged_in(running_plane)
    found = pages(Api(running_plane.url, ADMIN_KEY, TLS_CONTEXT))
    assert {"overview", "allocation-active", "slot", "task", "event", "project", "key"} <= {*dict(found)}
    assert f"/allocations/{running.id}" in dict(found).values()
    absent = {"missing", "allocation-serial-log"}
    statuses = {name: admin_browser.open(path).status for name, path in found if name not in absent}
    assert {name: status for name, status in statuses.items() if status != 200} == {}


def test_screenshots_of_chosen_pages_have_the_chosen_width_and_theme(
    running_plane: RunningPlane, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    require_chromium()
    client = {"url": running_plane.url, "api_key": ADMIN_KEY, "ca": ""}
    (tmp_path / "client.json").write_text(json.dumps(client))
    pictures = tmp_path / "pictures"
    chosen = ["--only", "login", "overview", "missing", "--width", "390", "--theme", "dark"]
    assert main(["--state", str(tmp_path), str(pictures), *chosen]) == 0, capsys.readouterr().err
    names = ["login-390-dark.png", "missing-390-dark.png", "overview-390-dark.png"]
    assert sorted(each.name for each in pictures.iterdir()) == names
    for name in names:
        assert struct.unpack(">I", (pictures / name).read_bytes()[16:20]) == (390,), name
    with running_plane.client() as admin:
        states = [each["state"] for each in admin.get("/sessions").json()["items"]]
    assert "active" not in states


def test_screenshots_without_a_running_control_plane_fail_with_a_message_that_states_what_to_do(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--state", str(tmp_path), str(tmp_path / "pictures")]) == 1
    assert "start the control plane with ./dev up --demo first" in capsys.readouterr().err
