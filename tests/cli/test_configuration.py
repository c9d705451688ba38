"""Sources of the control plane's URL, key and CA: options, environment variables and the configuration file."""

import json
import os
import ssl
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from control_plane.cli.access import config_files, first_existing
from deploy.embedded.certificates import SERVER_LIFE, Certificates, ensure
from deploy.embedded.layout import default_state
from tests.cli.conftest import KEY
from tests.cli.control_plane import ScriptedPlane, page, running_plane
from tests.cli.outcome import Outcome

Run = Callable[..., Outcome]


@pytest.fixture
def config(home: Path, plane: ScriptedPlane) -> Path:
    plane.script("GET /v1/skus", page())
    file = home / "client.json"
    file.write_text(json.dumps({"url": plane.url, "api_key": "from-file"}))
    file.chmod(0o600)
    return file


def _key_sent(plane: ScriptedPlane) -> str:
    return plane.received[-1].headers["Authorization"]


def test_cli_without_options_takes_url_and_key_from_the_configuration_file(
    config: Path, plane: ScriptedPlane, unconfigured: Run
) -> None:
    assert unconfigured("skus", "list").code == 0
    assert _key_sent(plane) == "Bearer from-file"


def test_api_key_in_the_environment_overrides_the_configuration_file(
    config: Path, plane: ScriptedPlane, unconfigured: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLICEPLANE_API_KEY", "from-environment")
    assert unconfigured("skus", "list").code == 0
    assert _key_sent(plane) == "Bearer from-environment"


def test_api_key_option_overrides_the_environment(
    config: Path, plane: ScriptedPlane, sliceplane: Run
) -> None:
    assert sliceplane("--api-key", "from-option", "skus", "list").code == 0
    assert _key_sent(plane) == "Bearer from-option"


def test_configuration_file_readable_by_other_users_is_used_with_a_warning(
    config: Path, unconfigured: Run
) -> None:
    config.chmod(0o644)
    outcome = unconfigured("skus", "list")
    assert outcome.code == 0
    assert f"chmod 600 {config}" in outcome.err


def test_key_in_the_configuration_file_is_never_sent_to_a_different_url(
    config: Path, plane: ScriptedPlane, unconfigured: Run
) -> None:
    outcome = unconfigured("--url", f"http://localhost:{plane.server_address[1]}", "skus", "list")
    assert outcome.code == 3
    assert not plane.received


def test_cli_without_configuration_fails_and_names_dev_up_and_the_url_variable(unconfigured: Run) -> None:
    outcome = unconfigured("nodes", "list")
    assert outcome.code == 2
    assert "./dev up" in outcome.err
    assert "SLICEPLANE_URL" in outcome.err


@pytest.mark.parametrize("content", ["", "[]", '{"url": "http://x"}'])
def test_malformed_configuration_file_is_refused_with_its_path(
    home: Path, unconfigured: Run, content: str
) -> None:
    (home / "client.json").write_text(content)
    outcome = unconfigured("nodes", "list")
    assert outcome.code == 2
    assert str(home / "client.json") in outcome.err


def test_url_without_http_scheme_is_refused_as_wrong_usage(unconfigured: Run) -> None:
    assert unconfigured("--url", "localhost:8080", "--api-key", KEY, "nodes", "list").code == 2


def test_cli_looks_for_its_configuration_in_the_state_folders_of_dev_up() -> None:
    def folders(environ: dict[str, str], *, root: bool) -> list[str]:
        return [str(file.parent) for file in config_files(environ, root=root)]

    assert folders({}, root=True) == ["/var/lib/sliceplane", "/var/lib/sliceplane-simulated"]
    below_home = ["/h/.local/state/sliceplane", "/h/.local/state/sliceplane-simulated"]
    assert folders({"HOME": "/h"}, root=False) == below_home
    assert folders({"XDG_STATE_HOME": "/x"}, root=False) == ["/x/sliceplane", "/x/sliceplane-simulated"]
    named = {"SLICEPLANE_CONFIG": "/c/client.json", "XDG_STATE_HOME": "/x"}
    assert folders(named, root=True) == ["/c"]
    of_dev_up = [str(default_state(simulated=simulated)) for simulated in (False, True)]
    assert folders(dict(os.environ, SLICEPLANE_CONFIG=""), root=os.geteuid() == 0) == of_dev_up


def test_cli_configuration_of_simulated_nodes_is_used_only_if_the_ordinary_configuration_is_missing(
    tmp_path: Path,
) -> None:
    ordinary, simulated = files = tmp_path / "sliceplane.json", tmp_path / "simulated.json"
    assert first_existing(files) == ordinary
    simulated.touch()
    assert first_existing(files) == simulated
    ordinary.touch()
    assert first_existing(files) == ordinary


@pytest.fixture
def secure(home: Path) -> Iterator[tuple[str, Certificates]]:
    """The URL and certificates of an HTTPS server that answers with an empty list of SKUs."""
    made = ensure(home / "tls", ["127.0.0.1"], datetime.now(UTC))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(made.server)
    with running_plane() as plane:
        plane.script("GET /v1/skus", page())
        plane.socket = context.wrap_socket(plane.socket, server_side=True)
        yield plane.url.replace("http://", "https://"), made


def test_ca_in_the_configuration_file_is_trusted_for_the_url_in_that_file(
    secure: tuple[str, Certificates], home: Path, unconfigured: Run
) -> None:
    url, made = secure
    configuration = {"url": url, "api_key": KEY, "ca": made.ca.read_text()}
    (home / "client.json").write_text(json.dumps(configuration))
    assert unconfigured("skus", "list").code == 0
    assert unconfigured("--url", url, "--api-key", KEY, "skus", "list").code == 0


def test_ca_can_be_given_as_an_option_or_in_the_environment(
    secure: tuple[str, Certificates], unconfigured: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, made = secure
    words = ("--url", url, "--api-key", KEY, "skus", "list")
    assert unconfigured("--ca", str(made.ca), *words).code == 0
    monkeypatch.setenv("SLICEPLANE_CA", str(made.ca))
    assert unconfigured(*words).code == 0


def test_certificate_of_an_untrusted_ca_ends_the_command_with_code_4_and_one_sentence(
    secure: tuple[str, Certificates], tmp_path: Path, unconfigured: Run
) -> None:
    url, _ = secure
    other = ensure(tmp_path / "other", ["127.0.0.1"], datetime.now(UTC))
    for words in ((), ("--ca", str(other.ca))):
        outcome = unconfigured(*words, "--url", url, "--api-key", KEY, "skus", "list")
        assert outcome.code == 4
        assert "the certificate is not signed by a trusted CA" in outcome.err
        assert "--ca" in outcome.err


def test_expired_certificate_is_reported_with_the_current_time_of_this_machine(
    secure: tuple[str, Certificates], unconfigured: Run, home: Path
) -> None:
    folder = home / "old"
    made = ensure(folder, ["127.0.0.1"], datetime.now(UTC) - SERVER_LIFE - timedelta(days=1))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(made.server)
    with running_plane() as plane:
        plane.socket = context.wrap_socket(plane.socket, server_side=True)
        url = plane.url.replace("http://", "https://")
        outcome = unconfigured("--ca", str(made.ca), "--url", url, "--api-key", KEY, "skus", "list")
    assert outcome.code == 4
    assert "has expired" in outcome.err
    assert f"{datetime.now(UTC):%Y-%m-%d}" in outcome.err


@pytest.mark.parametrize("content", [None, "torn"])
def test_unreadable_ca_file_is_refused_as_wrong_usage(
    home: Path, unconfigured: Run, content: str | None
) -> None:
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
    assert unconfigured(*words).code == 2


def test_ca_in_the_configuration_file_is_not_trusted_for_a_different_url(
    secure: tuple[str, Certificates], home: Path, unconfigured: Run
) -> None:
    url, made = secure
    configuration = {"url": url, "api_key": KEY, "ca": made.ca.read_text()}
    (home / "client.json").write_text(json.dumps(configuration))
    other = url.replace("127.0.0.1", "localhost")
    assert unconfigured("--url", other, "--api-key", KEY, "skus", "list").code == 4
