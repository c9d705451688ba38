"""Where the command line looks for the control plane and its key."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from control_plane.cli.access import config_path
from tests.cli.conftest import KEY
from tests.cli.control_plane import ScriptedPlane, page
from tests.cli.outcome import Outcome

Run = Callable[..., Outcome]


@pytest.fixture
def config(home: Path, plane: ScriptedPlane) -> Path:
    plane.answers("GET /v1/skus", page())
    file = home / "client.json"
    file.write_text(json.dumps({"url": plane.url, "api_key": "from-file"}))
    file.chmod(0o600)
    return file


def _key_sent(plane: ScriptedPlane) -> str:
    return plane.seen[-1].headers["Authorization"]


def test_the_configuration_file_is_enough(config: Path, plane: ScriptedPlane, bare: Run) -> None:
    assert bare("skus", "list").code == 0
    assert _key_sent(plane) == "Bearer from-file"


def test_the_environment_goes_before_the_file(
    config: Path, plane: ScriptedPlane, bare: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLICEPLANE_API_KEY", "from-environment")
    assert bare("skus", "list").code == 0
    assert _key_sent(plane) == "Bearer from-environment"


def test_options_go_before_the_environment(config: Path, plane: ScriptedPlane, sliceplane: Run) -> None:
    assert sliceplane("--api-key", "from-option", "skus", "list").code == 0
    assert _key_sent(plane) == "Bearer from-option"


def test_a_file_that_others_can_read_is_used_with_a_warning(config: Path, bare: Run) -> None:
    config.chmod(0o644)
    outcome = bare("skus", "list")
    assert outcome.code == 0
    assert f"chmod 600 {config}" in outcome.err


def test_the_key_of_a_file_is_never_sent_to_another_url(
    config: Path, plane: ScriptedPlane, bare: Run
) -> None:
    outcome = bare("--url", f"http://localhost:{plane.server_address[1]}", "skus", "list")
    assert outcome.code == 3
    assert not plane.seen


def test_without_any_configuration_it_says_how_to_get_one(bare: Run) -> None:
    outcome = bare("nodes", "list")
    assert outcome.code == 2
    assert "./dev up" in outcome.err
    assert "SLICEPLANE_URL" in outcome.err


@pytest.mark.parametrize("content", ["", "[]", '{"url": "http://x"}'])
def test_a_broken_configuration_is_named(home: Path, bare: Run, content: str) -> None:
    (home / "client.json").write_text(content)
    outcome = bare("nodes", "list")
    assert outcome.code == 2
    assert str(home / "client.json") in outcome.err


def test_a_url_of_another_kind_is_wrong_usage(bare: Run) -> None:
    assert bare("--url", "localhost:8080", "--api-key", KEY, "nodes", "list").code == 2


def test_the_state_folder_is_the_one_of_dev_up() -> None:
    assert config_path({}, root=True) == Path("/var/lib/sliceplane/client.json")
    assert config_path({"HOME": "/h"}, root=False) == Path("/h/.local/state/sliceplane/client.json")
    assert config_path({"XDG_STATE_HOME": "/x"}, root=False) == Path("/x/sliceplane/client.json")
    assert config_path({"SLICEPLANE_CONFIG": "/c.json", "XDG_STATE_HOME": "/x"}, root=True) == Path("/c.json")
