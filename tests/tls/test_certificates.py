"""Tests of the CA of `./dev up` and its certificates: they are kept while valid, renewed before they expire, and
recreated if damaged.
"""

import os
import ssl
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509

from control_plane.certificates import UnusableCertificate, redis_ca, server_context
from control_plane.settings import Settings
from deploy.embedded import redis as embedded_redis
from deploy.embedded.certificates import (
    CA_LIFE,
    MINIMUM_REMAINING_VALIDITY,
    SERVER_LIFE,
    Certificates,
    ensure,
)
from deploy.embedded.layout import Layout
from deploy.embedded.stack import Stack, StackFailed
from node_agent.settings import Settings as AgentSettings
from node_agent.settings import SettingsRefused, api_trust
from tasks.trust import UnusableCa, trust, why_untrusted
from tests.servers.redis import server_folder

NOW = datetime(2026, 11, 21, tzinfo=UTC)
ADDRESSES = ("127.0.0.1", "10.213.0.1")
DAY = timedelta(days=1)


@pytest.fixture
def made(tmp_path: Path) -> Certificates:
    return ensure(tmp_path, ADDRESSES, NOW)


def _contents(made: Certificates) -> tuple[bytes, bytes]:
    return made.ca.read_bytes(), made.server.read_bytes()


def test_valid_tls_certificates_are_kept_at_the_next_start(made: Certificates) -> None:
    before = _contents(made)
    assert (
        _contents(ensure(made.ca.parent, ADDRESSES[:1], NOW + SERVER_LIFE - MINIMUM_REMAINING_VALIDITY))
        == before
    )


def test_server_certificate_that_expires_within_thirty_days_is_renewed_by_the_same_ca(
    made: Certificates,
) -> None:
    ca, server = _contents(made)
    again = _contents(ensure(made.ca.parent, ADDRESSES, NOW + SERVER_LIFE - MINIMUM_REMAINING_VALIDITY + DAY))
    assert again[0] == ca
    assert again[1] != server


def test_new_server_address_leads_to_a_new_certificate_of_the_same_ca(
    made: Certificates,
) -> None:
    ca, server = _contents(made)
    again = ensure(made.ca.parent, [*ADDRESSES, "10.213.1.1"], NOW)
    assert again.ca.read_bytes() == ca
    assert again.server.read_bytes() != server
    names = x509.load_pem_x509_certificate(again.server.read_bytes()).extensions.get_extension_for_class(
        x509.SubjectAlternativeName
    )
    assert [str(each) for each in names.value.get_values_for_type(x509.IPAddress)] == [
        *ADDRESSES,
        "10.213.1.1",
    ]
    assert names.value.get_values_for_type(x509.DNSName) == ["localhost"]


def test_ca_that_expires_soon_is_replaced_together_with_its_server_certificate(
    made: Certificates,
) -> None:
    ca, server = _contents(made)
    again = _contents(ensure(made.ca.parent, ADDRESSES, NOW + CA_LIFE - MINIMUM_REMAINING_VALIDITY + DAY))
    assert again[0] != ca
    assert again[1] != server


@pytest.mark.parametrize("name", ["ca.key", "server.pem", "ca.pem"])
@pytest.mark.parametrize("fault", [lambda path: path.unlink(), lambda path: path.write_text("damaged")])
def test_missing_or_damaged_tls_certificate_file_is_recreated(
    made: Certificates, name: str, fault: Callable[[Path], object]
) -> None:
    fault(made.ca.with_name(name))
    again = ensure(made.ca.parent, ADDRESSES, NOW)
    server = x509.load_pem_x509_certificate(again.server.read_bytes())
    server.verify_directly_issued_by(x509.load_pem_x509_certificate(again.ca.read_bytes()))


def test_private_keys_of_tls_certificates_are_readable_only_by_their_owner(made: Certificates) -> None:
    modes = {path.name: path.stat().st_mode & 0o777 for path in made.ca.parent.iterdir()}
    assert modes == {"ca.key": 0o600, "server.pem": 0o600, "ca.pem": 0o644}


def test_tls_context_with_a_given_ca_trusts_no_other_ca(made: Certificates) -> None:
    assert trust(made.ca.read_text()).cert_store_stats()["x509_ca"] == 1


@pytest.mark.parametrize("given", ["", "not a certificate", "-----BEGIN CERTIFICATE-----\nAAAA\n", "é"])
def test_text_that_is_not_a_certificate_is_refused_as_a_ca(given: str) -> None:
    with pytest.raises(UnusableCa):
        trust(given)


def _settings(**changes: object) -> Settings:
    return Settings.model_validate(
        {
            "database_url": "postgresql+psycopg://x@/x",
            "redis_url": "rediss://127.0.0.1",
            **changes,
        }
    )


def test_tls_contexts_require_at_least_tls_1_2(made: Certificates) -> None:
    server = server_context(_settings(tls_certificate_file=made.server, tls_key_file=made.server))
    assert server is not None
    for context in (server, trust(None), trust(made.ca.read_text())):
        assert context.minimum_version == ssl.TLSVersion.TLSv1_2


def test_unusable_tls_certificate_file_is_refused_with_its_path_or_the_reason(
    made: Certificates, tmp_path: Path
) -> None:
    other = ensure(tmp_path / "other", ADDRESSES, NOW)
    wrong = {
        "does not match the certificate": (
            made.server,
            made.ca.with_name("ca.key"),
        ),
        "No such file": (tmp_path / "nowhere.pem", other.server),
    }
    for words, (certificate, key) in wrong.items():
        with pytest.raises(UnusableCertificate, match=words):
            server_context(_settings(tls_certificate_file=certificate, tls_key_file=key))
    with pytest.raises(UnusableCertificate, match="nowhere"):
        redis_ca(_settings(redis_ca_file=tmp_path / "nowhere.pem"))
    with pytest.raises(ValueError, match="require each other"):
        _settings(tls_certificate_file=made.server)


def _agent(**changes: object) -> AgentSettings:
    folders = ("enrolment_token_file", "state_folder", "run_folder", "images_folder")
    slot = {"index": 0, "vcpus": 1, "memory_mib": 96}
    settings = {"node_id": "lab-a", "api_url": "https://127.0.0.1", "slots": [slot]}
    return AgentSettings.model_validate({**dict.fromkeys(folders, Path("/x")), **settings, **changes})


def test_agent_refuses_an_unreadable_ca_file_and_a_ca_file_for_a_url_without_https(
    tmp_path: Path,
) -> None:
    with pytest.raises(SettingsRefused, match=r"cannot read ca_file .*No such file"):
        api_trust(_agent(ca_file=tmp_path / "none.pem"))
    (tmp_path / "torn.pem").write_text("damaged")
    with pytest.raises(SettingsRefused, match=r"ca_file .*no readable PEM certificate"):
        api_trust(_agent(ca_file=tmp_path / "torn.pem"))
    with pytest.raises(ValueError, match="does not begin with https"):
        _agent(ca_file=tmp_path / "torn.pem", api_url="http://127.0.0.1")


@pytest.mark.parametrize(
    ("addresses", "when", "message"),
    [
        (
            ADDRESSES,
            -SERVER_LIFE - DAY,
            "has expired, or this machine's clock is wrong: it shows",
        ),
        (ADDRESSES, 2 * DAY, "is not valid yet, or this machine's clock is wrong: it shows"),
        (
            ADDRESSES[1:],
            -DAY,
            "is for another host: IP address mismatch, certificate is not valid for '127.0.0.1'",
        ),
    ],
)
def test_redis_start_with_an_invalid_certificate_fails_with_the_reason(
    server_with_tls: Path,
    tmp_path: Path,
    addresses: tuple[str, ...],
    when: timedelta,
    message: str,
) -> None:
    made = ensure(tmp_path, addresses, datetime.now(UTC) + when)
    with (
        server_folder() as folder,
        pytest.raises(embedded_redis.RedisDidNotStart) as refused,
    ):
        embedded_redis.start(folder, server=server_with_tls, certificates=made)
    assert message in str(why_untrusted(refused.value))
    assert message in refused.value.reason


def test_redis_of_debian_is_preferred_to_the_bundled_redis_that_comes_first_in_path(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bundled, debian = embedded_redis.bundled_server(), Path("/usr/bin/redis-server")
    if bundled is None or not debian.exists():
        pytest.skip("needs the bundled redis-server and that of Debian")
    monkeypatch.setenv("PATH", str(bundled.parent), prepend=os.pathsep)
    assert embedded_redis.find_server() == debian


def test_redis_program_without_tls_support_is_used_on_loopback_and_refused_for_other_addresses(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bundled = embedded_redis.bundled_server()
    if bundled is None or embedded_redis.supports_tls(bundled):
        pytest.skip("needs a redis-server without TLS")
    monkeypatch.setattr(embedded_redis, "find_server", lambda: bundled)
    message: list[str] = []
    with server_folder() as state:
        layout = Layout(state)
        layout.ensure()
        with pytest.raises(StackFailed, match="install Debian's redis-server"):
            Stack(layout, ("10.213.0.1",), message.append)._start_redis()
        on_loopback = Stack(layout, (), message.append)
        on_loopback._start_redis()
        try:
            assert on_loopback.redis_url.startswith("redis://")
            assert "without TLS" in message[-1]
        finally:
            on_loopback.stop()
            layout.remove_run()
