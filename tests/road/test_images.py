"""Tests of guest images with their own readiness check on a simulated node, from the request to the endpoints of the
slice.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from deploy.embedded.postgres import PostgresServer
from tests.road.conftest import Site, running_site
from tests.servers.plane import running
from tests.waiting import until

OFFERED = {
    "web": {"port": 8080, "banner": ""},
    "mail": {"port": 2525, "banner": "220 "},
    "silent": {"port": 2525, "banner": "220 "},
}
ON_THE_NODE: tuple[dict[str, object], ...] = (
    {"name": "web", "port": 8080, "banner": ""},
    {"name": "mail", "port": 2525, "banner": "220 mail.example.org ESMTP"},
    {"name": "silent", "port": 2525, "banner": ""},
)


@pytest.fixture
def site(postgres_server: PostgresServer, tmp_path: Path) -> Iterator[Site]:
    with (
        running(postgres_server) as plane,
        running_site(plane, tmp_path, images=ON_THE_NODE) as made,
    ):
        for name, check in OFFERED.items():
            body = {"name": name, "format": "kernel", "readiness": check}
            assert plane.client().post("/images", json=body).status_code == 201
        yield made


def endpoints(site: Site, allocation: str) -> list[tuple[str, int]]:
    """Return the kind and port of each endpoint of the allocation, as the API shows them."""
    return [(each["kind"], each["port"]) for each in site.show(allocation)["endpoints"]]


def ready_events(site: Site, allocation: str) -> list[dict[str, Any]]:
    timeline = site.timeline(allocation)
    return [event["data"] for event in timeline if event["type"] == "allocation.slice_ready"]


def test_slice_becomes_active_by_the_readiness_check_that_its_image_declares(site: Site) -> None:
    web, mail = site.create(image="web"), site.create(image="mail")
    for allocation in (web, mail):
        site.await_state(allocation, "active")
    assert (endpoints(site, web), endpoints(site, mail)) == ([("tcp", 8080)], [("tcp", 2525)])
    assert [each["banner"] for each in ready_events(site, web)] == [""]
    assert [each["banner"] for each in ready_events(site, mail)] == ["220 mail.example.org ESMTP"]


def test_stopped_slice_that_is_started_again_becomes_active_by_the_readiness_check_of_its_image(
    site: Site,
) -> None:
    web, ssh = site.create(image="web"), site.create()
    for allocation in (web, ssh):
        site.await_state(allocation, "active")
        assert site.plane.client().post(f"/allocations/{allocation}/stop").is_success
    for allocation in (web, ssh):
        site.await_state(allocation, "stopped")
        assert site.plane.client().post(f"/allocations/{allocation}/start").is_success
        site.await_state(allocation, "active")
    assert (endpoints(site, web), endpoints(site, ssh)) == ([("tcp", 8080)], [("ssh", 22)])


def test_guest_with_an_open_port_and_no_banner_is_not_ready_if_its_image_requires_a_banner(
    site: Site,
) -> None:
    silent, web = site.create(image="silent"), site.create(image="web")
    site.await_state(web, "active")

    def bound() -> bool:
        return bool(site.show(silent)["slots"][0]["lease_state"] == "bound")

    until(bound, "the guest has booted and has its address")
    assert (site.show(silent)["state"], endpoints(site, silent)) == ("provisioning", [])
