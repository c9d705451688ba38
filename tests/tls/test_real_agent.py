"""Tests of API and Redis over TLS with a real agent: the agent trusts only the configured CA, logs why it refuses a
server, and reconnects.
"""

import contextlib
from datetime import UTC, datetime

import httpx
import pytest
import redis

from deploy.embedded.certificates import Certificates, ensure
from tests.servers.plane import free_port
from tests.tls.site import Agent, Site
from tests.waiting import until

pytestmark = pytest.mark.slow


def test_order_over_tls_reaches_the_agent_and_its_result_returns(site: Site, agent: Agent) -> None:
    site.release(site.make_slice())
    paths = {(each["client"], each["server"]): each for each in site.api.items("/paths")}
    for pair in (
        ("1 node", "API"),
        ("1 node", "Redis"),
        ("api", "Redis"),
        ("callers", "API"),
    ):
        assert paths[pair]["encrypted"], pair
    assert [each["warnings"] for each in paths.values() if each["warnings"]] == []


def test_plaintext_port_of_redis_has_a_warning_in_the_inventory_of_network_paths(
    site: Site, agent: Agent
) -> None:
    with redis.Redis.from_url(site.stack.redis_url) as admin:
        admin.config_set("port", port := free_port())
        warnings = [warning for each in site.api.items("/paths") for warning in each["warnings"]]
        admin.config_set("port", 0)
    assert warnings == [f"Redis also accepts plaintext connections on port {port}: set port 0"]


def test_client_without_tls_is_refused_by_api_and_redis(site: Site, agent: Agent) -> None:
    with pytest.raises(httpx.TransportError):
        httpx.get(site.stack.api_url.replace("https://", "http://") + "/healthz", timeout=5)
    plain = site.stack.redis_url.replace("rediss://", "redis://").partition("?")[0]
    with (
        redis.Redis.from_url(plain, socket_timeout=5) as client,
        pytest.raises(redis.ConnectionError),
    ):
        client.ping()


def test_agent_that_trusts_a_different_ca_does_not_enrol_and_logs_the_reason(
    site: Site, other_ca: Certificates
) -> None:
    untrusting = site.agent("lab-x", ca_file=str(other_ca.ca))
    try:
        untrusting.await_log(
            "node_enrolment_retried",
            "the certificate is not signed by a trusted CA",
        )
        assert site.api.get("/nodes/lab-x")["state"] == "registered"
    finally:
        untrusting.child.stop()


def test_api_and_redis_with_certificates_of_an_untrusted_ca_are_refused_until_these_are_replaced(
    site: Site, agent: Agent, other_ca: Certificates
) -> None:
    own = site.stack.certificates
    agent.mark()
    try:
        site.restart_with(other_ca)
        for event in ("control_plane_unreachable", "task_queue_unreachable"):
            agent.await_log(event, "the certificate is not signed by a trusted CA")
        dispatcher = site.layout.logs / "dispatcher.log"
        until(
            lambda: "not signed by a trusted CA" in dispatcher.read_text(),
            "the dispatcher logs the reason",
        )
    finally:
        site.restart_with(own)
    agent.await_log("task_queue_reachable")
    _check_reconnected(site, agent)


def test_agent_logs_an_expired_server_certificate_and_reconnects_after_its_renewal(
    site: Site, agent: Agent
) -> None:
    agent.mark()
    site.restart_api_with(site.expired)
    agent.await_log(
        "control_plane_unreachable",
        "the certificate has expired, or this machine's clock is wrong",
    )
    site.stack.certificates.server.unlink()
    renewed = ensure(site.layout.certificates, ["127.0.0.1"], datetime.now(UTC))
    site.restart_with(renewed)
    _check_reconnected(site, agent)


def _check_reconnected(site: Site, agent: Agent) -> None:
    agent.await_log("control_plane_reachable")
    until(lambda: _answers(site), "the API answers")
    site.release(site.make_slice())


def _answers(site: Site) -> bool:
    with contextlib.suppress(httpx.TransportError):
        return bool(site.api.get("/nodes"))
    return False
