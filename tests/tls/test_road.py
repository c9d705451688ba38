"""API and Redis over TLS, and a real agent that goes to both: it works, believes nobody else, says why, and comes
back.
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


def test_an_order_reaches_the_handler_and_its_outcome_comes_back(site: Site, agent: Agent) -> None:
    site.release(site.make_slice())
    paths = {(each["who"], each["reaches"]): each for each in site.api.items("/paths")}
    for pair in (
        ("1 node", "API"),
        ("1 node", "Redis"),
        ("api", "Redis"),
        ("callers", "API"),
    ):
        assert paths[pair]["encrypted"], pair
    assert [each["warnings"] for each in paths.values() if each["warnings"]] == []


def test_a_plain_port_beside_the_other_is_found_in_the_inventory(site: Site, agent: Agent) -> None:
    with redis.Redis.from_url(site.stack.redis_url) as admin:
        admin.config_set("port", port := free_port())
        told = [warning for each in site.api.items("/paths") for warning in each["warnings"]]
        admin.config_set("port", 0)
    assert told == [f"Redis answers in plaintext too, at port {port}: set port 0"]


def test_a_client_that_speaks_no_tls_gets_nothing(site: Site, agent: Agent) -> None:
    with pytest.raises(httpx.TransportError):
        httpx.get(site.stack.api_url.replace("https://", "http://") + "/healthz", timeout=5)
    plain = site.stack.redis_url.replace("rediss://", "redis://").partition("?")[0]
    with (
        redis.Redis.from_url(plain, socket_timeout=5) as client,
        pytest.raises(redis.ConnectionError),
    ):
        client.ping()


def test_an_agent_that_believes_another_ca_does_not_enrol_and_says_why(
    site: Site, others: Certificates
) -> None:
    stranger = site.agent("lab-x", ca_file=str(others.ca))
    try:
        stranger.await_said(
            "enrolment_waits",
            "the certificate is not signed by a CA that is believed here",
        )
        assert site.api.get("/nodes/lab-x")["state"] == "expected"
    finally:
        stranger.child.stop()


def test_servers_of_another_ca_are_refused_at_both_ends_and_the_agent_comes_back(
    site: Site, agent: Agent, others: Certificates
) -> None:
    own = site.stack.certificates
    agent.mark()
    try:
        site.show(others)
        for event in ("control_plane_away", "queue_away"):
            agent.await_said(event, "the certificate is not signed by a CA that is believed here")
        dispatcher = site.layout.logs / "dispatcher.log"
        until(
            lambda: "not signed by a CA that is believed here" in dispatcher.read_text(),
            "the dispatcher says why",
        )
    finally:
        site.show(own)
    agent.await_said("queue_back")
    _is_back(site, agent)


def test_an_expired_certificate_is_named_and_a_renewed_one_brings_the_agent_back(
    site: Site, agent: Agent
) -> None:
    agent.mark()
    site.show_as_api(site.expired)
    agent.await_said(
        "control_plane_away",
        "the certificate has expired, or this machine's clock is wrong",
    )
    site.stack.certificates.server.unlink()
    renewed = ensure(site.layout.certificates, ["127.0.0.1"], datetime.now(UTC))
    site.show(renewed)
    _is_back(site, agent)


def _is_back(site: Site, agent: Agent) -> None:
    agent.await_said("control_plane_back")
    until(lambda: _answers(site), "the API answers")
    site.release(site.make_slice())


def _answers(site: Site) -> bool:
    with contextlib.suppress(httpx.TransportError):
        return bool(site.api.get("/nodes"))
    return False
