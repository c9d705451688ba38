"""A request can keep apart from allocations with a label: they never share a node, not even if they are requested at
the same time (ALC-6).
"""

from concurrent.futures import ThreadPoolExecutor

import psycopg

from tests.api.access.principals import create_project
from tests.api.node import admit, allocate
from tests.servers.plane import RunningPlane
from tests.waiting import until

DB = {"role": "db"}
NODES = 3


def await_nodes(plane: RunningPlane, expected: list[str]) -> None:
    """Wait until the list of allocations has slots on exactly these nodes."""

    def nodes() -> list[str]:
        listed = plane.client().get("/allocations").json()["items"]
        return sorted(slot["node_id"] for each in listed for slot in each["slots"])

    until(lambda: nodes() == expected, f"the allocations are on {expected}")


def test_allocations_that_keep_apart_from_a_label_are_on_different_nodes_and_refused_if_no_node_is_left(
    emptied_plane: RunningPlane,
) -> None:
    for name in ("n1", "n2"):
        admit(emptied_plane, name, slots=2)
    made = [allocate(emptied_plane, labels=DB, apart_from=DB) for _ in range(3)]
    assert [each.status_code for each in made] == [202, 202, 409]
    assert made[0].json()["apart_from"] == DB
    await_nodes(emptied_plane, ["n1", "n2"])
    problem = made[2].json()
    assert [each["code"] for each in problem["reasons"]] == ["no_capacity"]
    assert [(each["code"], each["nodes"]) for each in problem["placement"]] == [("not_apart", 2)]
    assert allocate(emptied_plane, labels=DB).status_code == 202


def test_request_that_keeps_apart_from_a_label_may_share_a_node_with_another_project_that_uses_the_label(
    emptied_plane: RunningPlane,
) -> None:
    admit(emptied_plane, "n1", slots=2)
    create_project(emptied_plane, "other")
    assert allocate(emptied_plane, labels=DB, project="other").status_code == 202
    assert allocate(emptied_plane, labels=DB, apart_from=DB).status_code == 202


def test_concurrent_requests_that_keep_apart_from_each_other_share_no_node(
    emptied_plane: RunningPlane,
) -> None:
    for number in range(NODES):
        admit(emptied_plane, f"n{number}", slots=3)
    with ThreadPoolExecutor(3 * NODES) as pool:
        answers = list(
            pool.map(
                lambda _: allocate(emptied_plane, labels=DB, apart_from=DB).status_code, range(3 * NODES)
            )
        )
    assert sorted(answers) == [202] * NODES + [409] * 2 * NODES
    await_nodes(emptied_plane, [f"n{number}" for number in range(NODES)])
    assert emptied_plane.rows("select count(*) from work.label_lock") == [(0,)]


def test_request_that_keeps_apart_from_a_label_skips_a_node_with_a_slot_locked_by_a_concurrent_request(
    emptied_plane: RunningPlane,
) -> None:
    for name in ("n1", "n2"):
        admit(emptied_plane, name, slots=2)
    counted = "select coalesce(sum(free), 0) from work.slot_counts"
    until(lambda: emptied_plane.rows(counted) == [(4,)], "the free slots are counted")
    with psycopg.connect(emptied_plane.database.admin_dsn) as other:
        other.execute("select 1 from read.slot where slot_id = 'n1/1' for update")
        made = allocate(emptied_plane, apart_from=DB)
    assert made.status_code == 202, made.text
    assert [slot["node_id"] for slot in made.json()["slots"]] == ["n2"]


def test_request_that_keeps_apart_from_a_label_waits_for_a_locked_slot_if_no_other_node_is_suitable(
    emptied_plane: RunningPlane,
) -> None:
    admit(emptied_plane, "n1", slots=2)
    with ThreadPoolExecutor(1) as pool, psycopg.connect(emptied_plane.database.admin_dsn) as other:
        other.execute("select 1 from read.slot where slot_id = 'n1/1' for update")
        answer = pool.submit(allocate, emptied_plane, apart_from=DB)
        until(emptied_plane.has_lock_waiter, "the request waits for the slot")
        other.rollback()
        assert answer.result().status_code == 202
