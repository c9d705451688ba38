"""Images of a deployment: its settings offer them, each with the sign that a guest of it is ready (ALC-9)."""

import os
import subprocess
from collections.abc import Iterator, Mapping
from typing import Any
from uuid import uuid4

import httpx
import pytest

from control_plane.settings import ImageSettings, SettingsRefused, read_settings
from deploy.embedded.children import REPOSITORY, python_module
from deploy.embedded.postgres import PostgresServer
from events.values import image_name
from node_agent.resync import order_of
from tasks.orders import ApplySlice, Readiness
from tasks.sealed import task_in
from tests.api.node import admit, allocate, batch, survey, wanted
from tests.servers.plane import RunningPlane, running
from tests.waiting import until

WEB = ImageSettings(name=image_name("web"), port=8080)
MAIL = ImageSettings(name=image_name("mail"), port=2525, banner="220 ")
JUMP = ImageSettings(name=image_name("jump"), port=2222, banner="SSH-2.0")
PLAIN = ImageSettings(name=image_name("plain"))
NEEDED = {"SLICEPLANE_DATABASE_URL": "postgresql+psycopg:///none", "SLICEPLANE_REDIS_URL": "unix:///none"}


@pytest.fixture(scope="module")
def plane(postgres_server: PostgresServer) -> Iterator[RunningPlane]:
    with running(postgres_server, images=(WEB, MAIL, JUMP, PLAIN)) as plane:
        yield plane


@pytest.fixture(scope="module")
def node(plane: RunningPlane) -> httpx.Client:
    """One that has all of the images, and a slot for each."""
    node = admit(plane, "n1", slots=5)
    found = [{"index": at, "vcpus": 1, "memory_mib": 96, "network_device": f"slice{at}"} for at in range(5)]
    images = ["lab-guest", "web", "mail", "jump", "plain"]
    described = batch(str(uuid4()), (1, survey(images=images, slots=found)))
    assert node.post("/reports", json=described).is_success
    return node


def of_image(plane: RunningPlane, image: str) -> dict[str, Any]:
    """An allocation that has just been asked for."""
    answer = allocate(plane, image=image)
    assert answer.status_code == 202, answer.text
    return dict(answer.json())


def types(plane: RunningPlane, made: Mapping[str, Any]) -> list[str]:
    stream = f"allocation-{made['id']}"
    return [
        type_
        for (type_,) in plane.rows(
            "select type from ledger.event where stream_id = %(stream)s order by version", stream=stream
        )
    ]


def readiness(node: httpx.Client, made: Mapping[str, Any]) -> Readiness:
    """What the node is told of the allocation's only slot."""

    def bodies() -> list[ApplySlice]:
        orders = [order_of(task_in(signed)) for signed in wanted(node)]
        mine = [order.body for order in orders if order.allocation_id == made["id"]]
        return [body for body in mine if isinstance(body, ApplySlice)]

    until(lambda: len(bodies()) == 1, "the order is derived")
    return bodies()[0].readiness


@pytest.mark.parametrize(("image", "kind"), [(WEB, "tcp"), (MAIL, "tcp"), (JUMP, "ssh")])
def test_a_slice_is_found_ready_and_told_of_by_the_sign_of_its_image(
    plane: RunningPlane, node: httpx.Client, image: ImageSettings, kind: str
) -> None:
    made = of_image(plane, image.name)
    assert types(plane, made) == [
        "allocation.requested", "allocation.readiness_named", "allocation.placed",
    ]  # fmt: skip
    assert readiness(node, made) == Readiness(port=image.port, banner=image.banner, deadline_seconds=120)
    [slot] = made["slots"]
    said = {"kind": "slice.ready", "slot_id": slot["slot_id"], "allocation_id": made["id"]}
    ready = {**said, "address": slot["private_ip"], "port": image.port, "banner": image.banner}
    assert node.post("/reports", json=batch(str(uuid4()), (1, ready))).is_success
    with plane.client() as client:
        found = client.get(f"/allocations/{made['id']}").json()
    answers = {
        "kind": kind,
        "address": slot["private_ip"],
        "port": image.port,
        "node_id": "n1",
        "via": "node",
    }
    assert (found["state"], found["endpoints"]) == ("active", [answers])


@pytest.mark.parametrize("image", ["lab-guest", "plain"])
def test_an_image_that_names_no_sign_is_ready_by_its_ssh_banner_and_nothing_is_recorded_of_it(
    plane: RunningPlane, node: httpx.Client, image: str
) -> None:
    made = of_image(plane, image)
    assert types(plane, made) == ["allocation.requested", "allocation.placed"]
    assert readiness(node, made) == Readiness(deadline_seconds=120)


def test_every_image_that_may_be_asked_for_is_listed(plane: RunningPlane) -> None:
    with plane.client() as client:
        listed = [sku["images"] for sku in client.get("/skus").json()["items"]]
    assert listed == [["lab-guest", "web", "mail", "jump", "plain"]] * 2


def test_an_image_that_is_not_offered_is_refused_beside_every_other_fault(plane: RunningPlane) -> None:
    answer = allocate(plane, image="no-such", sku="h900.huge", slot_count=0)
    assert answer.status_code == 422
    told = {reason["field"]: reason for reason in answer.json()["reasons"]}
    assert told.keys() == {"/image", "/sku", "/slot_count"}
    assert told["/image"]["code"] == "unknown_image"
    assert (
        told["/image"]["message"] == "no image is named 'no-such'; there is jump, lab-guest, mail, plain, web"
    )


def test_another_application_does_not_offer_them(shared_plane: RunningPlane, plane: RunningPlane) -> None:
    assert plane.client().get("/skus").is_success
    assert allocate(shared_plane, image="web").json()["reasons"][0]["code"] == "unknown_image"


@pytest.mark.parametrize(
    ("images", "reasons"),
    [
        ('[{"name": "web"', ["images", "line 1"]),
        ('{"web": 8080}', ["SLICEPLANE_IMAGES: Input should be a valid tuple"]),
        ('[{"name": "web", "port": "8080"}]', ["SLICEPLANE_IMAGES.0.port: Input should be a valid integer"]),
        ('[{"name": "lab-guest", "port": 1}]', ["SLICEPLANE_IMAGES: lab-guest is the release's own"]),
        (
            '[{"name": "a"}, {"name": "lab-guest"}, {"name": "a"}]',
            ["SLICEPLANE_IMAGES: a is named 2 times; lab-guest is the release's own"],
        ),
        (
            '[{"name": "We b", "banner": "\\u00e9"}, {"port": 65536, "probe": 1}]',
            [
                "SLICEPLANE_IMAGES.0.name: 'We b' is not a valid image name",
                "SLICEPLANE_IMAGES.0.banner: it is to be printable ASCII; it is listened for at a port, and none",
                "SLICEPLANE_IMAGES.1.name: not set",
                "SLICEPLANE_IMAGES.1.port: Input should be less than or equal to 65535",
                "SLICEPLANE_IMAGES.1.probe: Extra inputs are not permitted",
            ],
        ),
    ],
)
def test_images_that_cannot_be_offered_are_refused_with_every_reason(
    monkeypatch: pytest.MonkeyPatch, images: str, reasons: list[str]
) -> None:
    for name, value in {**NEEDED, "SLICEPLANE_IMAGES": images}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(SettingsRefused) as refused:
        read_settings()
    assert [reason for reason in reasons if reason not in str(refused.value)] == []


def test_a_program_with_settings_that_cannot_be_used_says_so_in_one_line_and_tells_no_secret() -> None:
    wrong = {
        "SLICEPLANE_IMAGES": "[{}]",
        "SLICEPLANE_REDIS_URL": "unix:///s3cret",
        "SLICEPLANE_LOG": "s3cret",
    }
    ended = subprocess.run(
        python_module("control_plane", "dispatcher"),
        cwd=REPOSITORY, env={**os.environ, **NEEDED, **wrong}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    [line] = ended.stderr.splitlines()
    assert (ended.returncode, line.partition(": ")[0]) == (1, "The settings cannot be used")
    assert "SLICEPLANE_IMAGES.0.name: not set" in line
    assert "SLICEPLANE_LOG: " in line
    assert "s3cret" not in line
