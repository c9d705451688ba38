"""Tests of the API client of `./dev up`: it reads all pages of a list and turns a refusal into readable text."""

import ssl

import pytest

from deploy.embedded.client import Api, ApiRefused
from tests.servers.plane import ADMIN_KEY, RunningPlane


@pytest.fixture
def api(shared_plane: RunningPlane) -> Api:
    return Api(shared_plane.url, ADMIN_KEY, ssl.create_default_context())


def test_api_client_of_dev_up_returns_the_items_of_all_pages_of_a_list(api: Api) -> None:
    names = [f"paged-{number}" for number in range(5)]
    for name in names:
        api.post("/nodes", {"id": name})
    assert {*names} <= {node["id"] for node in api.items("/nodes", limit="2")}
    registered = api.items("/events?type=node.registered&type=node.removed", limit="2")
    assert {event["type"] for event in registered} == {"node.registered"}


def test_api_client_of_dev_up_raises_a_refusal_as_text_with_reason_codes_and_without_json(api: Api) -> None:
    with pytest.raises(
        ApiRefused, match=r"^the API refused GET /v1/nodes/absent with status 404: "
    ) as refused:
        api.get("/nodes/absent")
    assert refused.value.codes == {"unknown_node"}
    assert "{" not in str(refused.value)
