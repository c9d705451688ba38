"""An image with a sign of its own that a guest is ready, from the request to the endpoint, over a simulated node."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from control_plane.settings import ImageSettings
from deploy.embedded.postgres import PostgresServer
from events.values import image_name
from tests.road.conftest import Site, a_site
from tests.servers.plane import running
from tests.waiting import until

OFFERED = (
    ImageSettings(name=image_name("web"), port=8080),
    ImageSettings(name=image_name("mail"), port=2525, banner="220 "),
    ImageSettings(name=image_name("dumb"), port=2525, banner="220 "),
)
ON_THE_NODE: tuple[dict[str, object], ...] = (
    {"name": "web", "port": 8080, "says": ""},
    {"name": "mail", "port": 2525, "says": "220 mail.example.org ESMTP"},
    {"name": "dumb", "port": 2525, "says": ""},
)


@pytest.fixture
def site(postgres_server: PostgresServer, tmp_path: Path) -> Iterator[Site]:
    with (
        running(postgres_server, images=OFFERED) as plane,
        a_site(plane, tmp_path, images=ON_THE_NODE) as made,
    ):
        yield made


def answers(site: Site, allocation: str) -> list[tuple[str, int]]:
    """The kind and port of each of its endpoints."""
    return [(each["kind"], each["port"]) for each in site.show(allocation)["endpoints"]]


def ready(site: Site, allocation: str) -> list[dict[str, Any]]:
    story = site.story(allocation)
    return [event["data"] for event in story if event["type"] == "allocation.slice_ready"]


def test_slices_become_ready_by_the_signs_of_their_images(site: Site) -> None:
    web, mail = site.create(image="web"), site.create(image="mail")
    for allocation in (web, mail):
        site.await_state(allocation, "active")
    assert (answers(site, web), answers(site, mail)) == ([("tcp", 8080)], [("tcp", 2525)])
    assert [each["banner"] for each in ready(site, web)] == [""]
    assert [each["banner"] for each in ready(site, mail)] == ["220 mail.example.org ESMTP"]


def test_a_slice_comes_back_by_the_sign_that_it_began_with(site: Site) -> None:
    web, ssh = site.create(image="web"), site.create()
    for allocation in (web, ssh):
        site.await_state(allocation, "active")
        assert site.plane.client().post(f"/allocations/{allocation}/stop").is_success
    for allocation in (web, ssh):
        site.await_state(allocation, "stopped")
        assert site.plane.client().post(f"/allocations/{allocation}/start").is_success
        site.await_state(allocation, "active")
    assert (answers(site, web), answers(site, ssh)) == ([("tcp", 8080)], [("ssh", 22)])


def test_a_guest_whose_port_is_open_and_says_nothing_is_not_ready_where_a_banner_is_wanted(
    site: Site,
) -> None:
    dumb, web = site.create(image="dumb"), site.create(image="web")
    site.await_state(web, "active")

    def bound() -> bool:
        return bool(site.show(dumb)["slots"][0]["lease_state"] == "bound")

    until(bound, "the guest has booted and has its address")
    assert (site.show(dumb)["state"], answers(site, dumb)) == ("provisioning", [])
