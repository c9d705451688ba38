"""Both clients against a real control plane, with a node that the test controls."""

from collections.abc import Iterator

import pytest

from control_plane.client import bodies, calls, errors
from tests.api.node import KEY
from tests.api.scripted_node import ScriptedNode, scripted_node
from tests.client.clients import AnyClient, client_of
from tests.servers.plane import ADMIN_KEY, RunningPlane
from tests.waiting import until


@pytest.fixture(scope="module")
def node(shared_plane: RunningPlane) -> ScriptedNode:
    return scripted_node(shared_plane, "n1", slots=4)


@pytest.fixture(params=["sync", "async"])
def client(request: pytest.FixtureRequest, shared_plane: RunningPlane) -> Iterator[AnyClient]:
    with client_of(request.param, shared_plane.url, ADMIN_KEY) as client:
        yield client


def test_allocation_is_created_awaited_followed_and_released(node: ScriptedNode, client: AnyClient) -> None:
    body = bodies.CreateAllocation(sku="lab.small", ssh_authorized_keys=[KEY], labels={"team": "a"})
    made = client.run(calls.create_allocation(body))
    assert (made.state, made.labels) == ("placed", {"team": "a"})
    [slot] = made.slots
    named = {"slot_id": slot.slot_id, "allocation_id": made.id}
    node.report("slice.starting", **named)
    node.report("slice.ready", **named, address=slot.private_ip, port=22, banner="SSH-2.0-x")
    assert client.wait_for(made, "active", within=60).state == "active"
    releasing = client.run(calls.release_allocation(made.id))
    node.report("slice.removed", **named, absent=["port", "lease"])
    assert client.wait_for(releasing, "released", within=60).state == "released"
    listed = client.items(calls.allocation_events(made.id))
    followed = client.follow(calls.watch_allocation(made.id), None, len(listed))
    assert [each.position for each in followed] == [each.position for each in listed]
    assert listed[0].type == "allocation.requested"


def test_client_reads_a_list_of_several_pages_completely(node: ScriptedNode, client: AnyClient) -> None:
    assert [slot.id for slot in client.items(calls.slots(), 3)] == ["n1/0", "n1/1", "n1/2"]
    assert len(client.items(calls.slots())) == 4


def test_client_raises_refusals_as_typed_errors_with_all_reasons(
    shared_plane: RunningPlane, client: AnyClient
) -> None:
    with pytest.raises(errors.UnknownName) as unknown:
        client.run(calls.node("no-such-node"))
    assert unknown.value.codes == {"unknown_node"}
    assert (unknown.value.request_id or "").startswith("req-")
    wrong = bodies.CreateAllocation(sku="lab.small", ssh_authorized_keys=[], lease_seconds=1)
    with pytest.raises(errors.Malformed) as malformed:
        client.run(calls.create_allocation(wrong))
    assert {each.field for each in malformed.value.reasons} == {"/ssh_authorized_keys", "/lease_seconds"}
    with pytest.raises(errors.Conflict):
        client.run(calls.stop_allocation(_released(client)))


def _released(client: AnyClient) -> str:
    """Create an allocation, which waits if no slot is free, and release it."""
    body = bodies.CreateAllocation(sku="lab.small", ssh_authorized_keys=[KEY], wait_for_capacity=True)
    made = client.run(calls.create_allocation(body))
    return str(client.run(calls.release_allocation(made.id)).id)


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_client_raises_unauthorised_for_an_unknown_api_key(shared_plane: RunningPlane, kind: str) -> None:
    with client_of(kind, shared_plane.url, "sp_unknown") as client, pytest.raises(errors.Unauthorised):
        client.run(calls.whoami())


def test_client_reads_readiness_status_and_the_caller(shared_plane: RunningPlane, client: AnyClient) -> None:
    assert client.run(calls.readiness()).checks[0].name == "postgres"
    assert client.run(calls.whoami()).role == "admin"
    until(lambda: client.run(calls.status()).status == "ready", "every program has started")
