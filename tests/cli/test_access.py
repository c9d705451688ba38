"""Where the command line looks for the control plane and its key."""

import json
import os
import ssl
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from control_plane.cli.access import config_files, first_there
from deploy.embedded.certificates import SERVER_LIFE, Certificates, ensure
from deploy.embedded.layout import default_state
from tests.cli.conftest import KEY
from tests.cli.control_plane import ScriptedPlane, page, running_plane
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


def test_the_state_folders_are_those_of_dev_up() -> None:
    def folders(environ: dict[str, str], *, root: bool) -> list[str]:
        return [str(file.parent) for file in config_files(environ, root=root)]

    assert folders({}, root=True) == ["/var/lib/sliceplane", "/var/lib/sliceplane-simulated"]
    below_home = ["/h/.local/state/sliceplane", "/h/.local/state/sliceplane-simulated"]
    assert folders({"HOME": "/h"}, root=False) == below_home
    assert folders({"XDG_STATE_HOME": "/x"}, root=False) == ["/x/sliceplane", "/x/sliceplane-simulated"]
    named = {"SLICEPLANE_CONFIG": "/c/client.json", "XDG_STATE_HOME": "/x"}
    assert folders(named, root=True) == ["/c"]
    ours = [str(default_state(simulated=simulated)) for simulated in (False, True)]
    assert folders(dict(os.environ, SLICEPLANE_CONFIG=""), root=os.geteuid() == 0) == ours


def test_where_only_simulated_nodes_were_started_their_control_plane_is_found(tmp_path: Path) -> None:
    ordinary, simulated = files = tmp_path / "sliceplane.json", tmp_path / "simulated.json"
    assert first_there(files) == ordinary
    simulated.touch()
    assert first_there(files) == simulated
    ordinary.touch()
    assert first_there(files) == ordinary


@pytest.fixture
def secure(home: Path) -> Iterator[tuple[str, Certificates]]:
    """An HTTPS server that answers any request with an empty page; its URL, and the CA that it is believed by."""
    made = ensure(home / "tls", ["127.0.0.1"], datetime.now(UTC))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(made.server)
    with running_plane() as plane:
        plane.answers("GET /v1/skus", page())
        plane.socket = context.wrap_socket(plane.socket, server_side=True)
        yield plane.url.replace("http://", "https://"), made


def test_the_ca_of_the_configuration_file_is_believed_for_its_url(
    secure: tuple[str, Certificates], home: Path, bare: Run
) -> None:
    url, made = secure
    told = {"url": url, "api_key": KEY, "ca": made.ca.read_text()}
    (home / "client.json").write_text(json.dumps(told))
    assert bare("skus", "list").code == 0
    assert bare("--url", url, "--api-key", KEY, "skus", "list").code == 0


def test_the_ca_may_be_an_option_or_come_from_the_environment(
    secure: tuple[str, Certificates], bare: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, made = secure
    asked = ("--url", url, "--api-key", KEY, "skus", "list")
    assert bare("--ca", str(made.ca), *asked).code == 0
    monkeypatch.setenv("SLICEPLANE_CA", str(made.ca))
    assert bare(*asked).code == 0


def test_a_control_plane_of_another_ca_is_told_of_in_one_sentence(
    secure: tuple[str, Certificates], tmp_path: Path, bare: Run
) -> None:
    url, _ = secure
    other = ensure(tmp_path / "other", ["127.0.0.1"], datetime.now(UTC))
    for words in ((), ("--ca", str(other.ca))):
        outcome = bare(*words, "--url", url, "--api-key", KEY, "skus", "list")
        assert outcome.code == 4
        assert "the certificate is not signed by a CA that is known here" in outcome.err
        assert "--ca" in outcome.err


def test_an_expired_certificate_is_told_with_the_time_that_this_machine_has(
    secure: tuple[str, Certificates], bare: Run, home: Path
) -> None:
    folder = home / "old"
    made = ensure(folder, ["127.0.0.1"], datetime.now(UTC) - SERVER_LIFE - timedelta(days=1))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(made.server)
    with running_plane() as plane:
        plane.socket = context.wrap_socket(plane.socket, server_side=True)
        url = plane.url.replace("http://", "https://")
        outcome = bare("--ca", str(made.ca), "--url", url, "--api-key", KEY, "skus", "list")
    assert outcome.code == 4
    assert "has expired" in outcome.err
    assert f"{datetime.now(UTC):%Y-%m-%d}" in outcome.err


@pytest.mark.parametrize("content", [None, "torn"])
def test_a_ca_that_cannot_be_read_is_wrong_usage(home: Path, bare: Run, content: str | None) -> None:
    if content is not None:
        (home / "ca.pem").write_text(content)
    words = (
        "--ca",
        str(home / "ca.pem"),
        "--url",
        "https://127.0.0.1:1",
        "--api-key",
        KEY,
        "skus",
        "list",
    )
    assert bare(*words).code == 2


def test_the_ca_of_a_file_is_not_believed_for_another_url(
    secure: tuple[str, Certificates], home: Path, bare: Run
) -> None:
    url, made = secure
    told = {"url": url, "api_key": KEY, "ca": made.ca.read_text()}
    (home / "client.json").write_text(json.dumps(told))
    other = url.replace("127.0.0.1", "localhost")
    assert bare("--url", other, "--api-key", KEY, "skus", "list").code == 4
