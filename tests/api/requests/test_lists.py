"""Every list of the API has pages and an order; the lists come from the OpenAPI document of a control plane."""

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any, Final

import httpx
import pytest

from events.ledger import search
from tests.api.access.principals import create_account, create_project, issue, session_of
from tests.api.catalogue.entries import CHANGES, CONTENTS, create
from tests.api.node import admit, allocate
from tests.servers.plane import ADMIN_KEY, TLS_CONTEXT, RunningPlane
from tests.waiting import until

PAGED: Final = {"cursor", "limit", "order"}
NEWEST_FIRST: Final = {
    "/v1/access-log",
    "/v1/allocations",
    "/v1/audit/heads",
    "/v1/tasks",
    "/v1/verifications",
}
"""Lists that are in descending order unless a request names another."""
SINGLE: Final = {"/v1/parked", "/v1/nodes/{node}/drift", "/v1/drift"}
"""Lists that may have fewer than two items in this test."""
Item = dict[str, Any]


@pytest.fixture(scope="module")
def plane(shared_plane: RunningPlane) -> RunningPlane:
    """Control plane with at least two items in most lists."""
    for name in ("n1", "n2", "n3"):
        admit(shared_plane, name, slots=2)
    for name in ("p1", "p2"):
        create_project(shared_plane, name)
        session_of(shared_plane, ADMIN_KEY)
        session_of(shared_plane, issue(shared_plane, name, projects=[name]).secret)
        create_account(shared_plane, name, projects=[name])
    with shared_plane.client() as admin:
        for path in CONTENTS:
            _, name = (create(admin, path)["name"] for _ in range(2))
            assert admin.put(f"/{path}/{name}", json={**CONTENTS[path], **CHANGES[path]}).is_success
        for month in ("2025-01", "2025-02"):
            assert admin.post(f"/usage/periods/{month}/close", json={}).is_success
    for _ in range(3):
        assert allocate(shared_plane).status_code == 202
    with shared_plane.client() as admin:
        for name in ("p1", "p2"):
            assert admin.put(f"/projects/{name}/reservations/lab.small", json={"slots": 1}).is_success
    shared_plane.rows(
        "update read.slot set drift = %(drift)s where slot_index = 0 returning 1",
        drift=DRIFT,
    )
    shared_plane.rows(
        "insert into work.parked (stream_id, since, error) select 'task-' || number, now(), 'broken'"
        " from generate_series(1, 3) as number returning 1"
    )
    shared_plane.rows(
        "insert into work.verification (verification_id, requested_by, requested_at, state)"
        " select gen_random_uuid(), 'key:test', now(), 'equal' from generate_series(1, 3) returning 1"
    )
    until(lambda: len(shared_plane.rows(_LEASES)) >= 2, "the usage has leases that have ended")
    return shared_plane


_LEASES: Final = """
insert into read.usage_lease
select position, allocation_id, 'granted', now() - interval '2 h', now() - interval '1 h' from read.usage_request
    on conflict (position) do update set kind = 'granted' returning 1
"""
DRIFT: Final = (
    '[{"kind": "slice.missing", "desired": "a", "observed": "b", "since": "2026-11-25T00:00:00Z", "blocks": true},'
    ' {"kind": "slice.missing", "desired": "c", "observed": "d", "since": "2026-11-25T00:00:00Z", "blocks": true}]'
)


@pytest.fixture(scope="module")
def names(plane: RunningPlane) -> dict[str, str]:
    with plane.client() as admin:
        entries = {path: admin.get(f"/{path}").json()["items"] for path in CONTENTS}
        changed = {
            path: next(each["name"] for each in found if each["version"] == 2)
            for path, found in entries.items()
        }
        return {
            "node": "n1",
            "allocation": admin.get("/allocations").json()["items"][0]["id"],
            "sku": changed["skus"],
            "image": changed["images"],
            "app_profile": changed["app-profiles"],
        }


def lists(plane: RunningPlane) -> Iterator[tuple[str, set[str]]]:
    """Yield the path and the query parameters of every operation that returns a page."""
    for path, operations in (
        httpx.get(f"{plane.url}/openapi.json", verify=TLS_CONTEXT).json()["paths"].items()
    ):
        operation = operations.get("get", {})
        content = operation.get("responses", {}).get("200", {}).get("content", {})
        schema = content.get("application/json", {}).get("schema", {}).get("$ref", "")
        if schema.rpartition("/")[2].startswith("Page_"):
            yield path, {each["name"] for each in operation["parameters"] if each["in"] == "query"}


def walk(client: httpx.Client, url: str, **parameters: Any) -> list[Item]:
    """Return the items of all pages of a list."""
    items: list[Item] = []
    cursor = None
    while True:
        wanted = {**parameters, **({} if cursor is None else {"cursor": cursor})}
        answer = client.get(url, params=wanted)
        assert answer.status_code == 200, (url, wanted, answer.text)
        items += answer.json()["items"]
        cursor = answer.json()["next_cursor"]
        if cursor is None:
            return items


def test_every_list_has_a_limit_a_cursor_and_an_order(plane: RunningPlane) -> None:
    found = [*lists(plane)]
    assert len(found) >= 15
    assert {path: PAGED - parameters for path, parameters in found if not parameters >= PAGED} == {}


def test_walk_of_every_list_with_one_item_per_page_returns_each_item_once_in_both_orders(
    plane: RunningPlane, names: dict[str, str]
) -> None:
    until(lambda: is_quiet(plane), "no program appends events")
    now = datetime.now(UTC).isoformat().replace("+00:00", "Z")
    with plane.client() as admin:
        for path, _ in lists(plane):
            url = f"{plane.url}{path.format(**names)}"
            most = 100 if path == "/v1/drift" else 500
            # Each page that is read adds a row to the access log.
            which = {"method": "POST"} if path == "/v1/access-log" else {}
            if path == "/v1/usage/unused-reservations":  # the last part grows until the end of the range
                which = {"to": now}
            whole, forwards, backwards, default = walks(admin, url, most, which)
            assert len(whole) >= (1 if path in SINGLE else 2), path
            assert steady(forwards) == steady(whole), path
            if path == "/v1/drift":  # the order concerns the nodes; the drift of each is in one order
                assert sorted(map(str, backwards)) == sorted(map(str, whole))
                assert [each["node_id"] for each in backwards] == [
                    each["node_id"] for each in reversed(whole)
                ]
            else:
                assert steady(backwards) == steady(whole)[::-1], path
            assert steady(default) == steady(whole)[:: -1 if path in NEWEST_FIRST else 1], path


def walks(client: httpx.Client, url: str, most: int, which: dict[str, str]) -> tuple[list[Item], ...]:
    """Return the items of a list, read in four ways: in ascending order on pages of at most `most` items; on pages of
    one item in ascending and in descending order; and in the default order. If an item is added meanwhile, such as a
    signed head of the ledger, the list is read again.
    """
    while True:
        whole = walk(client, url, limit=most, order="asc", **which)
        found = (
            walk(client, url, limit=1, order="asc", **which),
            walk(client, url, limit=1, order="desc", **which),
            walk(client, url, limit=most, **which),
        )
        if len(walk(client, url, limit=most, order="asc", **which)) == len(whole):
            return whole, *found


def is_quiet(plane: RunningPlane) -> bool:
    """Return whether projector and sealer have read everything, and every order is listed as a task."""
    with plane.client() as admin:
        read_models = admin.get("/projections").json()["items"]
        tasks = admin.get("/tasks").json()["items"]
        behind = [
            each for each in read_models if not each["inline"] and each["position"] < each["last_position"]
        ]
        [head] = admin.get("/audit/heads", params={"limit": 1}).json()["items"]
        if head["size"] < plane.last_position():
            return False
        return not behind and len(tasks) >= 3 and all(each["state"] == "sent" for each in tasks)


def steady(items: list[Item]) -> list[Item]:
    """Return items without the fields that change with time."""
    changing = {"deliveries", "last_position", "last_used_at", "last_used_from", "position", "next_look_at"}
    events = [each for each in items if "recorded_at" in each]
    return events or [{name: each[name] for name in each.keys() - changing} for each in items]


@pytest.mark.parametrize(
    ("path", "parameters", "field", "values"),
    [
        ("/slots", {"node": "n1"}, "node_id", {"n1"}),
        ("/slots", {"state": "free"}, "state", {"free"}),
        ("/slots", {"sku": "lab.small"}, "skus", {"['lab.small']"}),
        ("/keys", {"role": "caller"}, "role", {"caller"}),
        ("/keys", {"project": "p1"}, "name", {"p1"}),
        ("/service-accounts", {"role": "caller"}, "role", {"caller"}),
        ("/service-accounts", {"project": "p1"}, "id", {"p1"}),
        ("/keys", {"state": "active"}, "state", {"active"}),
        ("/sessions", {"state": "active"}, "state", {"active"}),
        ("/projects", {"state": "active"}, "state", {"active"}),
        ("/allocations", {"project": "default"}, "project", {"default"}),
        ("/tasks", {"node": "n1"}, "node_id", {"n1"}),
    ],
)
def test_filtered_list_contains_only_matching_items_on_every_page(
    plane: RunningPlane, path: str, parameters: dict[str, str], field: str, values: set[str]
) -> None:
    with plane.client() as admin:
        found = walk(admin, path, limit=1, **parameters)
        every = [each for each in walk(admin, path) if str(each[field]) in values]
    assert {str(each[field]) for each in found} == values
    assert len(found) == len(every)


@pytest.mark.parametrize("window", [search.WINDOW, 7])
def test_event_list_newest_first_matches_the_reversed_list_with_every_filter(
    plane: RunningPlane, names: dict[str, str], window: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search, "WINDOW", window)
    until(lambda: is_quiet(plane), "no program appends events")
    allocation = names["allocation"]
    with plane.client() as admin:
        [first, *_] = walk(admin, "/events", stream=f"allocation-{allocation}")
        for parameters in (
            {},
            {"type": "slot.approved"},
            {"stream": ["slot-n1/0", "node-n2"]},
            {"project": "default"},
            {"correlation": first["correlation_id"]},
            {"project": "default", "type": "slot.claimed"},
            {"after": f"position:{first['position']}"},
            {"to": f"position:{first['position']}"},
        ):
            forward = walk(admin, "/events", **parameters)
            assert forward, parameters
            for limit in (1, 3, 500):
                backward = walk(admin, "/events", **parameters, order="desc", limit=limit)
                assert backward == forward[::-1], (parameters, limit)


@pytest.mark.parametrize(
    "query",
    [
        "/skus?cursor=X",
        "/nodes/n1/drift?cursor=x",
        "/tasks?cursor=1",
        "/verifications?cursor=x",
        "/parked?cursor=x",
        "/verifications?cursor=1.x",
    ]
    + [f"/{path}?order=up" for path in ("nodes", "events", "skus")]
    + ["/slots?state=free&at=position:1"],
)
def test_invalid_cursor_order_or_filter_of_a_list_is_refused(plane: RunningPlane, query: str) -> None:
    with plane.client() as admin:
        assert admin.get(query).status_code == 422
