"""Images of the catalogue, each with the readiness check of its guests (ALC-9)."""

import os
from collections.abc import Iterator, Mapping
from typing import Any
from uuid import uuid4

import httpx
import pytest

from control_plane.programs import SERVER
from deploy.embedded.children import installed_program
from deploy.embedded.postgres import PostgresServer
from node_agent.slots.resync import order_of
from tasks.orders import ApplySlice, Readiness
from tasks.sealed import task_in
from tests.api.node import admit, allocate, batch, desired_orders, survey
from tests.servers.plane import RunningPlane, running
from tests.servers.program_copies import run_copy
from tests.waiting import until

CHECKS: dict[str, dict[str, object]] = {
    "web": {"port": 8080, "banner": ""},
    "mail": {"port": 2525, "banner": "220 "},
    "jump": {"port": 2222, "banner": "SSH-2.0"},
    "plain": {},
}
NEEDED = {"SLICEPLANE_DATABASE_URL": "postgresql+psycopg:///none", "SLICEPLANE_REDIS_URL": "unix:///none"}


@pytest.fixture(scope="module")
def plane(postgres_server: PostgresServer) -> Iterator[RunningPlane]:
    with running(postgres_server) as plane:
        for name, check in CHECKS.items():
            body = {"name": name, "format": "kernel", "readiness": check}
            assert plane.client().post("/images", json=body).status_code == 201
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


@pytest.mark.parametrize(("image", "kind"), [("web", "tcp"), ("mail", "tcp"), ("jump", "ssh")])
def test_readiness_check_and_endpoint_of_a_slice_follow_its_image(
    plane: RunningPlane, node: httpx.Client, image: str, kind: str
) -> None:
    made, check = allocation_of_image(plane, image), CHECKS[image]
    assert event_types(plane, made) == ["allocation.requested", "allocation.specified", "allocation.placed"]
    assert readiness(node, made) == Readiness.model_validate({**check, "deadline_seconds": 120})
    [slot] = made["slots"]
    report = {"kind": "slice.ready", "slot_id": slot["slot_id"], "allocation_id": made["id"]}
    ready = {**report, "address": slot["private_ip"], **check}
    assert node.post("/reports", json=batch(str(uuid4()), (1, ready))).is_success
    with plane.client() as client:
        found = client.get(f"/allocations/{made['id']}").json()
    answers = {
        "kind": kind,
        "address": slot["private_ip"],
        "port": check["port"],
        "node_id": "n1",
        "via": "node",
    }
    assert (found["state"], found["endpoints"]) == ("active", [answers])


@pytest.mark.parametrize("image", ["lab-guest", "plain"])
def test_image_without_a_readiness_check_uses_the_ssh_banner_check(
    plane: RunningPlane, node: httpx.Client, image: str
) -> None:
    made = allocation_of_image(plane, image)
    assert readiness(node, made) == Readiness(deadline_seconds=120)


def test_allocation_request_with_an_unknown_image_is_refused_with_this_and_every_other_error(
    plane: RunningPlane,
) -> None:
    answer = allocate(plane, image="no-such", sku="h900.huge", slot_count=0)
    assert answer.status_code == 422
    reasons_by_field = {reason["field"]: reason for reason in answer.json()["reasons"]}
    assert reasons_by_field.keys() == {"/image", "/sku", "/slot_count"}
    assert reasons_by_field["/image"]["code"] == "unknown_image"
    assert reasons_by_field["/image"]["message"] == "no image is named 'no-such'"


def test_program_with_invalid_settings_prints_one_line_without_secrets() -> None:
    wrong = {
        "SLICEPLANE_OIDC": "[{}]",
        "SLICEPLANE_REDIS_URL": "unix:///s3cret",
        "SLICEPLANE_LOG": "s3cret",
    }
    ended = run_copy(installed_program(SERVER, "dispatcher"), {**os.environ, **NEEDED, **wrong})
    [line] = ended.stderr.splitlines()
    assert (ended.returncode, line.partition(": ")[0]) == (1, "The settings cannot be used")
    assert "SLICEPLANE_OIDC.0.name: not set" in line
    assert "SLICEPLANE_LOG: " in line
    assert "s3cret" not in line
