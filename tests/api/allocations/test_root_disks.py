"""Allocations with a disk image: their placement, their orders, and their user-data."""

from collections.abc import Iterator
from typing import Any, Final

import httpx
import pytest

from deploy.embedded.postgres import PostgresServer
from node_agent.slots.resync import order_of
from tasks.catalogue import ANNOUNCED, ROOT_DISK
from tasks.orders import ApplySlice, RootDisk
from tasks.sealed import task_in
from tests.api.node import KEY, admit, allocate, desired_orders, set_capabilities
from tests.servers.plane import RunningPlane, running
from tests.waiting import until

DIGEST: Final = "sha256:" + "5a" * 32
IMAGE: Final = {
    "name": "debian",
    "format": "qcow2",
    "digest": DIGEST,
    "size_bytes": 189_333_504,
    "firmware": "uefi",
    "default_user": "debian",
    "minimum_disk_gib": 3,
}
SKUS: Final = {"with.disk": 20, "small.disk": 2, "no.disk": 0}
SLOTS: Final = 12
"""More slots than the tests take."""
USER_DATA: Final = "#cloud-config\nruncmd: [touch /root/ran]\n"


@pytest.fixture(scope="module")
def plane(postgres_server: PostgresServer) -> Iterator[RunningPlane]:
    with running(postgres_server) as plane:
        client = plane.client()
        assert client.post("/images", json=IMAGE).status_code == 201
        minimal = {**IMAGE, "name": "minimal", "minimum_disk_gib": 0}
        assert client.post("/images", json=minimal).status_code == 201
        raw = {**minimal, "name": "raw", "format": "raw", "size_bytes": 2 * 2**30 + 1}
        assert client.post("/images", json=raw).status_code == 201
        for name, disk in SKUS.items():
            sku = {"name": name, "vcpus": 1, "memory_mib": 96, "disk_gib": disk, "price_per_hour": "0.01"}
            assert client.post("/skus", json=sku).status_code == 201
        yield plane


@pytest.fixture(scope="module")
def node(plane: RunningPlane) -> httpx.Client:
    """Node with slots that are offered under all SKUs. It has none of the disk images."""
    node = admit(plane, "n1", slots=SLOTS)
    for index in range(SLOTS):
        approved = plane.client().post(
            f"/nodes/n1/slots/{index}/approve", json={"skus": ["lab.small", *SKUS]}
        )
        assert approved.is_success, approved.text
    return node


def requested(plane: RunningPlane, **fields: object) -> httpx.Response:
    return allocate(plane, **{"sku": "with.disk", "image": "debian", **fields})


def ordered(node: httpx.Client, made: dict[str, Any]) -> ApplySlice:
    """Return the order for the only slot of an allocation."""

    def bodies() -> list[ApplySlice]:
        orders = [order_of(task_in(signed)) for signed in desired_orders(node)]
        matching = [order.body for order in orders if order.allocation_id == made["id"]]
        return [body for body in matching if isinstance(body, ApplySlice)]

    until(lambda: len(bodies()) == 1, "the order is derived")
    return bodies()[0]


def test_order_of_an_allocation_with_a_disk_image_contains_its_root_disk_and_user_data(
    plane: RunningPlane, node: httpx.Client
) -> None:
    answer = requested(plane, user_data=USER_DATA)
    assert answer.status_code == 202, answer.text
    machine = ordered(node, answer.json()).machine
    assert machine.root_disk == RootDisk(
        digest=DIGEST, format="qcow2", image_bytes=189_333_504, size_gib=20, firmware="uefi"
    )
    assert machine.user_data == USER_DATA


@pytest.mark.usefixtures("node")
def test_order_of_an_allocation_without_disk_image_and_user_data_does_not_mention_them(
    plane: RunningPlane, node: httpx.Client
) -> None:
    answer = allocate(plane)
    assert answer.status_code == 202, answer.text
    assert {"root_disk", "user_data"}.isdisjoint(ordered(node, answer.json()).machine.model_dump())


@pytest.mark.usefixtures("node")
def test_allocation_with_a_disk_image_is_placed_only_on_nodes_that_support_root_disks(
    plane: RunningPlane,
) -> None:
    set_capabilities(plane, [each for each in ANNOUNCED if each != ROOT_DISK])
    try:
        refused = requested(plane)
        assert allocate(plane, slot_count=1).status_code == 202
    finally:
        set_capabilities(plane, [*ANNOUNCED])
    assert refused.status_code == 409, refused.text
    assert [each["code"] for each in refused.json()["reasons"]] == ["no_healthy_slot"]
    assert [each["code"] for each in refused.json()["placement"]] == ["unsupported_by_agent"]
    preview = {"sku": "with.disk", "image": "debian", "ssh_authorized_keys": [KEY]}
    assert plane.client().post("/placements/preview", json=preview).json()["slots"] != []


@pytest.mark.parametrize(
    ("image", "sku", "needed"),
    [
        ("debian", "small.disk", 3),
        ("debian", "no.disk", 3),
        ("minimal", "no.disk", 1),
        ("raw", "small.disk", 3),
    ],
)
def test_disk_image_that_needs_a_larger_root_disk_than_the_sku_has_is_refused(
    plane: RunningPlane, image: str, sku: str, needed: int
) -> None:
    [reason] = requested(plane, image=image, sku=sku).json()["reasons"]
    assert reason["code"] == "image_too_large"
    assert f"needs a root disk of {needed} GiB" in reason["message"]


@pytest.mark.parametrize(
    ("user_data", "message"),
    [
        ("rm -rf /", "begin with '#cloud-config' or '#!'"),
        ("#!" + "x" * 16_383, "use at most 16384 bytes"),
        ("#!" + "ä" * 8_192, "use at most 16384 bytes"),
        ("#!/bin/sh\n\x1b", "use tabs and line breaks only"),
    ],
)
def test_user_data_that_cloud_init_or_an_order_cannot_take_is_refused(
    plane: RunningPlane, user_data: str, message: str
) -> None:
    answer = requested(plane, user_data=user_data)
    assert answer.status_code == 422
    [reason] = answer.json()["reasons"]
    assert reason["field"] == "/user_data"
    assert message in reason["message"]


def test_largest_user_data_and_ssh_keys_together_fit_into_an_order(
    plane: RunningPlane, node: httpx.Client
) -> None:
    comment = "\\" * 500
    keys = [f"{KEY} {comment}"] * 14
    user_data = "#!" + "\n" * 16_382
    answer = requested(plane, user_data=user_data, ssh_authorized_keys=keys)
    assert answer.status_code == 202, answer.text
    assert ordered(node, answer.json()).machine.user_data == user_data
    too_much = requested(plane, user_data=user_data, ssh_authorized_keys=[*keys, *keys[:2]])
    assert too_much.status_code == 422
    assert [each["code"] for each in too_much.json()["reasons"]] == ["too_much_user_data"]
