"""`sliceplane login`, `logout` and `contexts`: where they store what, and which access a command uses."""

import json
import stat
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from control_plane.cli.program import program
from tests.cli.control_plane import ScriptedPlane, document, page, problem, running_plane
from tests.cli.examples import allocation
from tests.cli.outcome import Outcome
from tests.cli.terminal import run_on_terminal

Run = Callable[..., Outcome]
CALLER = {"actor": "key:ci-1", "role": "caller", "scopes": ["allocations:read"], "projects": ["vision"]}


@pytest.fixture(autouse=True)
def config(home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Path of the file of contexts. No other configuration exists."""
    monkeypatch.delenv("SLICEPLANE_CONFIG")
    monkeypatch.setenv("XDG_STATE_HOME", str(home / "state"))
    return home / ".config/sliceplane/config.json"


@pytest.fixture
def plane() -> Iterator[ScriptedPlane]:
    with running_plane() as plane:
        plane.script("GET /v1/whoami", document(CALLER))
        plane.script("GET /v1/skus", page())
        plane.script("GET /v1/allocations", page())
        yield plane


@pytest.fixture
def login(plane: ScriptedPlane) -> Run:
    """Function that logs in with a key on standard input, and keeps the key."""

    def run(*words: str, key: str = "sp_secret\n") -> Outcome:
        result = CliRunner().invoke(program, [*words, "--with-key", "--keep-key"], input=key)
        return Outcome(result.exit_code, result.stdout, result.stderr)

    return run


def stored(config: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(config.read_text())
    return found


def sent(plane: ScriptedPlane) -> str:
    return plane.received[-1].headers["Authorization"]


def test_login_verifies_the_key_and_stores_it_in_a_file_that_only_the_user_can_read(
    plane: ScriptedPlane, login: Run, config: Path
) -> None:
    done = login("login", "--url", plane.url)
    assert done.code == 0, done.err
    assert "as key:ci-1, role caller; the current context is default" in done.out
    assert "sp_secret" not in done.out + done.err
    assert stat.S_IMODE(config.stat().st_mode) == 0o600
    assert stored(config) == {
        "current": "default",
        "contexts": {"default": {"url": plane.url, "credential": {"type": "api_key", "key": "sp_secret"}}},
    }
    assert [each.name for each in config.parent.iterdir()] == ["config.json"]


def test_commands_use_the_current_context(plane: ScriptedPlane, login: Run, unconfigured: Run) -> None:
    login("login", "--url", plane.url)
    assert unconfigured("skus", "list").code == 0
    assert sent(plane) == "Bearer sp_secret"


def test_login_with_a_key_that_is_refused_stores_nothing(
    plane: ScriptedPlane, login: Run, config: Path
) -> None:
    with running_plane() as other:
        other.script("GET /v1/whoami", problem(401, "unknown_key", "unknown API key"))
        done = login("login", "--url", other.url)
    assert (done.code, config.exists()) == (3, False)


@pytest.mark.parametrize("key", ["", "two words", "schlüssel", "a\x00b"])
def test_login_with_text_that_cannot_be_a_key_is_refused_without_a_request(
    plane: ScriptedPlane, login: Run, key: str
) -> None:
    assert login("login", "--url", plane.url, key=key).code == 2
    assert plane.received == []


def test_login_on_a_terminal_asks_for_the_key_without_echo(plane: ScriptedPlane, home: Path) -> None:
    words = (sys.executable, "-m", "control_plane.cli", "login", "--keep-key", "--url", plane.url)
    code, shown = run_on_terminal(*words, typed=("API key", "sp_typed\n"))
    assert code == 0, shown
    assert sent(plane) == "Bearer sp_typed"
    assert "sp_typed" not in shown


def test_login_again_keeps_url_and_project_of_the_context(
    plane: ScriptedPlane, login: Run, config: Path
) -> None:
    login("login", "--context", "lab", "--url", plane.url, "--project", "vision")
    login("login", key="sp_second")
    assert stored(config)["contexts"]["lab"]["project"] == "vision"
    assert stored(config)["contexts"]["lab"]["credential"]["key"] == "sp_second"


def test_login_without_a_url_is_refused(login: Run) -> None:
    assert login("login").code == 2


def test_context_list_has_no_keys_and_contexts_can_be_selected_and_removed(
    plane: ScriptedPlane, login: Run, unconfigured: Run, config: Path
) -> None:
    login("login", "--context", "one", "--url", plane.url)
    login("login", "--context", "two", "--url", plane.url, key="sp_two")
    listed = unconfigured("contexts", "list", "-o", "json")
    assert [each["name"] for each in json.loads(listed.out)["items"] if each["current"]] == ["two"]
    assert "sp_" not in listed.out
    assert unconfigured("contexts", "use", "one").code == 0
    unconfigured("skus", "list")
    assert sent(plane) == "Bearer sp_secret"
    unconfigured("--context", "two", "skus", "list")
    assert sent(plane) == "Bearer sp_two"
    assert unconfigured("contexts", "remove", "one").code == 0
    assert stored(config).keys() == {"contexts"}
    assert unconfigured("contexts", "use", "one").code == 2
    assert unconfigured("contexts", "list", "-o", "name").out == "two\n"


def test_logout_removes_the_key_and_keeps_the_context(
    plane: ScriptedPlane, login: Run, unconfigured: Run, config: Path
) -> None:
    login("login", "--context", "lab", "--url", plane.url)
    assert unconfigured("logout").code == 0
    assert "sp_secret" not in config.read_text()
    done = unconfigured("skus", "list")
    assert done.code == 3
    assert "sliceplane login --context lab" in done.err


def test_environment_variables_override_the_context_with_a_warning_if_the_option_names_the_context(
    plane: ScriptedPlane, login: Run, unconfigured: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    login("login", "--context", "lab", "--url", plane.url)
    monkeypatch.setenv("SLICEPLANE_API_KEY", "sp_environment")
    assert "overrides" not in unconfigured("skus", "list").err
    assert sent(plane) == "Bearer sp_environment"
    done = unconfigured("--context", "lab", "skus", "list")
    assert sent(plane) == "Bearer sp_environment"
    assert "the environment variable SLICEPLANE_API_KEY overrides the context lab" in done.err


def test_key_of_a_context_is_never_sent_to_a_different_url(
    plane: ScriptedPlane, login: Run, unconfigured: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    login("login", "--url", plane.url)
    with running_plane() as other:
        monkeypatch.setenv("SLICEPLANE_URL", other.url)
        assert unconfigured("skus", "list").code == 3
        assert other.received == []


def test_configuration_of_dev_up_is_used_if_no_context_is_current(
    plane: ScriptedPlane, login: Run, unconfigured: Run, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)  # root has its configuration in /var/lib
    client = home / "state/sliceplane/client.json"
    client.parent.mkdir(parents=True)
    client.write_text(json.dumps({"url": plane.url, "api_key": "sp_dev_up"}))
    client.chmod(0o600)
    assert unconfigured("skus", "list").code == 0
    assert sent(plane) == "Bearer sp_dev_up"
    login("login", "--url", plane.url)
    unconfigured("skus", "list")
    assert sent(plane) == "Bearer sp_secret"


def test_file_named_by_sliceplane_config_overrides_the_current_context(
    plane: ScriptedPlane, login: Run, unconfigured: Run, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    login("login", "--url", plane.url)
    file = home / "other.json"
    file.write_text(json.dumps({"url": plane.url, "api_key": "sp_file"}))
    monkeypatch.setenv("SLICEPLANE_CONFIG", str(file))
    unconfigured("skus", "list")
    assert sent(plane) == "Bearer sp_file"


def test_file_of_contexts_that_others_can_read_is_used_with_a_warning(
    plane: ScriptedPlane, login: Run, unconfigured: Run, config: Path
) -> None:
    login("login", "--url", plane.url)
    config.chmod(0o644)
    assert f"chmod 600 {config}" in unconfigured("skus", "list").err


@pytest.mark.parametrize("content", ["", "[]", '{"contexts": {"x": {}}}', '{"current": "gone"}'])
def test_file_of_contexts_that_is_not_valid_is_refused(unconfigured: Run, config: Path, content: str) -> None:
    config.parent.mkdir(parents=True)
    config.write_text(content)
    assert unconfigured("skus", "list").code == 2


def query(plane: ScriptedPlane) -> str:
    return plane.received[-1].path.partition("?")[2]


def test_project_is_that_of_the_option_else_of_the_environment_else_of_the_context(
    plane: ScriptedPlane, login: Run, unconfigured: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    login("login", "--url", plane.url, "--project", "of-context")
    unconfigured("allocations", "list")
    assert "project=of-context" in query(plane)
    monkeypatch.setenv("SLICEPLANE_PROJECT", "of-environment")
    unconfigured("allocations", "list")
    assert "project=of-environment" in query(plane)
    unconfigured("--project", "of-option", "allocations", "list")
    assert "project=of-option" in query(plane)
    unconfigured("allocations", "list", "--all-projects")
    assert "project" not in query(plane)


def test_allocation_is_created_in_the_project_of_the_context(
    plane: ScriptedPlane, login: Run, unconfigured: Run
) -> None:
    plane.script("POST /v1/allocations", document(allocation("placed"), 202))
    login("login", "--url", plane.url, "--project", "vision")
    done = unconfigured("allocations", "create", "--sku", "lab.small", "--no-wait", "-o", "name")
    assert done.code == 0, done.err
    assert json.loads(plane.received[-1].body)["project"] == "vision"


def test_project_of_the_context_filters_events_unless_projects_or_all_projects_are_requested(
    plane: ScriptedPlane, login: Run, unconfigured: Run
) -> None:
    plane.script("GET /v1/events", page())
    login("login", "--url", plane.url, "--project", "own")
    unconfigured("events", "list")
    assert "project=own" in query(plane)
    unconfigured("events", "list", "--project", "a", "--project", "b")
    assert "project=a&project=b" in query(plane)
    unconfigured("events", "list", "--all-projects")
    assert "project" not in query(plane)
