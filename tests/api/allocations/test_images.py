"""Images that the settings of a deployment offer, each with the readiness check of its guests (ALC-9)."""

import os
from collections.abc import Iterator, Mapping
from typing import Any
from uuid import uuid4

import httpx
import pytest

from control_plane.programs import SERVER
from control_plane.settings import ImageSettings, SettingsRefused, read_settings
from deploy.embedded.children import installed_program
from deploy.embedded.postgres import PostgresServer
from events.values import image_name
from node_agent.slots.resync import order_of
from tasks.orders import ApplySlice, Readiness
from tasks.sealed import task_in
from tests.api.node import admit, allocate, batch, desired_orders, survey
from tests.servers.plane import RunningPlane, running
from tests.servers.program_copies import run_copy
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
    """Node that reports every configured image, with one slot per image."""
    node = admit(plane, "n1", slots=5)
    found = [{"index": at, "vcpus": 1, "memory_mib": 96, "network_device": f"slice{at}"} for at in range(5)]
    images = ["lab-guest", "web", "mail", "jump", "plain"]
    described = batch(str(uuid4()), (1, survey(images=images, slots=found)))
    assert node.post("/reports", json=described).is_success
    return node


def allocation_of_image(plane: RunningPlane, image: str) -> dict[str, Any]:
    """Request an allocation of an image and return it."""
    answer = allocate(plane, image=image)
    assert answer.status_code == 202, answer.text
    return dict(answer.json())


def event_types(plane: RunningPlane, made: Mapping[str, Any]) -> list[str]:
    stream = f"allocation-{made['id']}"
    return [
        type_
        for (type_,) in plane.rows(
            "select type from ledger.event where stream_id = %(stream)s order by version", stream=stream
        )
    ]


def readiness(node: httpx.Client, made: Mapping[str, Any]) -> Readiness:
    """Return the readiness check in the order for the allocation's only slot."""

    def bodies() -> list[ApplySlice]:
        orders = [order_of(task_in(signed)) for signed in desired_orders(node)]
        matching = [order.body for order in orders if order.allocation_id == made["id"]]
        return [body for body in matching if isinstance(body, ApplySlice)]

    until(lambda: len(bodies()) == 1, "the order is derived")
    return bodies()[0].readiness


@pytest.mark.parametrize(("image", "kind"), [(WEB, "tcp"), (MAIL, "tcp"), (JUMP, "ssh")])
def test_readiness_check_and_endpoint_of_a_slice_follow_its_image(
    plane: RunningPlane, node: httpx.Client, image: ImageSettings, kind: str
) -> None:
    made = allocation_of_image(plane, image.name)
    assert event_types(plane, made) == [
        "allocation.requested", "allocation.readiness_check_set", "allocation.placed",
    ]  # fmt: skip
    assert readiness(node, made) == Readiness(port=image.port, banner=image.banner, deadline_seconds=120)
    [slot] = made["slots"]
    report = {"kind": "slice.ready", "slot_id": slot["slot_id"], "allocation_id": made["id"]}
    ready = {**report, "address": slot["private_ip"], "port": image.port, "banner": image.banner}
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
def test_image_without_a_readiness_check_uses_the_ssh_banner_check_and_records_no_event(
    plane: RunningPlane, node: httpx.Client, image: str
) -> None:
    made = allocation_of_image(plane, image)
    assert event_types(plane, made) == ["allocation.requested", "allocation.placed"]
    assert readiness(node, made) == Readiness(deadline_seconds=120)


def test_sku_list_contains_every_configured_image(plane: RunningPlane) -> None:
    with plane.client() as client:
        listed = [sku["images"] for sku in client.get("/skus").json()["items"]]
    assert listed == [["lab-guest", "web", "mail", "jump", "plain"]] * 2


def test_allocation_request_with_an_unknown_image_is_refused_with_this_and_every_other_error(
    plane: RunningPlane,
) -> None:
    answer = allocate(plane, image="no-such", sku="h900.huge", slot_count=0)
    assert answer.status_code == 422
    reasons_by_field = {reason["field"]: reason for reason in answer.json()["reasons"]}
    assert reasons_by_field.keys() == {"/image", "/sku", "/slot_count"}
    assert reasons_by_field["/image"]["code"] == "unknown_image"
    assert (
        reasons_by_field["/image"]["message"]
        == "unknown image 'no-such'; choose one of jump, lab-guest, mail, plain, web"
    )


def test_images_of_one_deployment_are_unknown_in_another(
    shared_plane: RunningPlane, plane: RunningPlane
) -> None:
    assert plane.client().get("/skus").is_success
    assert allocate(shared_plane, image="web").json()["reasons"][0]["code"] == "unknown_image"


@pytest.mark.parametrize(
    ("images", "reasons"),
    [
        ('[{"name": "web"', ["images", "line 1"]),
        ('{"web": 8080}', ["SLICEPLANE_IMAGES: Input should be a valid tuple"]),
        ('[{"name": "web", "port": "8080"}]', ["SLICEPLANE_IMAGES.0.port: Input should be a valid integer"]),
        (
            '[{"name": "lab-guest", "port": 1}]',
            ["SLICEPLANE_IMAGES: image lab-guest is already part of the release; choose another name"],
        ),
        (
            '[{"name": "a"}, {"name": "lab-guest"}, {"name": "a"}]',
            [
                "SLICEPLANE_IMAGES: image a is listed 2 times; list it once; image lab-guest is already part of the release; choose another name"
            ],
        ),
        (
            '[{"name": "We b", "banner": "\\u00e9"}, {"port": 65536, "probe": 1}]',
            [
                "SLICEPLANE_IMAGES.0.name: 'We b' is not a valid image name",
                "SLICEPLANE_IMAGES.0.banner: the banner must be printable ASCII; the banner is used only with a port",
                "SLICEPLANE_IMAGES.1.name: not set",
                "SLICEPLANE_IMAGES.1.port: Input should be less than or equal to 65535",
                "SLICEPLANE_IMAGES.1.probe: Extra inputs are not permitted",
            ],
        ),
    ],
)
def test_control_plane_settings_with_invalid_images_are_refused_with_every_reason(
    monkeypatch: pytest.MonkeyPatch, images: str, reasons: list[str]
) -> None:
    for name, value in {**NEEDED, "SLICEPLANE_IMAGES": images}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(SettingsRefused) as refused:
        read_settings()
    assert [reason for reason in reasons if reason not in str(refused.value)] == []


def test_program_with_invalid_settings_prints_one_line_without_secrets() -> None:
    wrong = {
        "SLICEPLANE_IMAGES": "[{}]",
        "SLICEPLANE_REDIS_URL": "unix:///s3cret",
        "SLICEPLANE_LOG": "s3cret",
    }
    ended = run_copy(installed_program(SERVER, "dispatcher"), {**os.environ, **NEEDED, **wrong})
    [line] = ended.stderr.splitlines()
    assert (ended.returncode, line.partition(": ")[0]) == (1, "The settings cannot be used")
    assert "SLICEPLANE_IMAGES.0.name: not set" in line
    assert "SLICEPLANE_LOG: " in line
    assert "s3cret" not in line
