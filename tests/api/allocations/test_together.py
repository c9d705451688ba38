"""Creations that arrive at about the same time share transactions, and each gets the answer that it would get alone."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial

import httpx
import psycopg

from tests.api.node import KEY, admit, allocate
from tests.servers.plane import RunningPlane
from tests.waiting import until

OPEN = "select count(*) from work.access where position is null and path = '/v1/allocations'"
TRANSACTIONS = "select count(distinct xmin::text) from ledger.event where type = 'allocation.requested'"
CLAIMED = "select count(*) from read.slot where state = 'claimed'"
UNUSED_KEYS = "select count(*) from ledger.command_key where answer is null"


@contextmanager
def locked_project(plane: RunningPlane) -> Iterator[None]:
    """Let creations in the default project wait until the end of the `with` block."""
    with psycopg.connect(plane.database.admin_dsn) as holding:
        holding.execute("select 1 from read.project where project = 'default' for update")
        yield


def send_together(
    plane: RunningPlane, requests: Sequence[Callable[[], httpx.Response]]
) -> list[httpx.Response]:
    """Send requests so that all of them have arrived before one of them is decided; return their responses."""
    with ThreadPoolExecutor(len(requests)) as pool:
        with locked_project(plane):
            sent = [pool.submit(each) for each in requests]
            until(lambda: plane.rows(OPEN) == [(len(requests),)], "all requests have arrived")
        return [each.result() for each in sent]


def keyed(plane: RunningPlane, key: str, **changes: object) -> httpx.Response:
    body = {"sku": "lab.small", "ssh_authorized_keys": [KEY], **changes}
    with plane.client(**{"Idempotency-Key": key}) as client:
        return client.post("/allocations", json=body)


def test_allocation_creations_that_wait_at_the_same_time_share_transactions(
    emptied_plane: RunningPlane,
) -> None:
    admit(emptied_plane, "n1", slots=12)
    answers = send_together(emptied_plane, [partial(allocate, emptied_plane)] * 12)
    assert [each.status_code for each in answers] == [202] * 12
    assert len({each.json()["slots"][0]["slot_id"] for each in answers}) == 12
    [(transactions,)] = emptied_plane.rows(TRANSACTIONS)
    assert transactions <= 6, "two run first, and those that arrive meanwhile share transactions"


def test_each_of_several_allocation_creations_in_one_transaction_gets_its_own_answer(
    emptied_plane: RunningPlane,
) -> None:
    admit(emptied_plane, "n1", slots=6)
    with emptied_plane.client() as client:
        assert client.put("/projects/default/limits", json={"slots": 5}).is_success
    first = keyed(emptied_plane, "used")
    answers = send_together(
        emptied_plane,
        [
            partial(keyed, emptied_plane, "a"),
            partial(keyed, emptied_plane, "b", slot_count=2),
            partial(keyed, emptied_plane, "unknown", sku="none"),
            partial(keyed, emptied_plane, "too-many", slot_count=6),
            partial(keyed, emptied_plane, "used"),
            partial(keyed, emptied_plane, "used", slot_count=2),
            partial(keyed, emptied_plane, "twice"),
            partial(keyed, emptied_plane, "twice"),
        ],
    )
    assert [each.status_code for each in answers] == [202, 202, 404, 409, 202, 409, 202, 202]
    assert answers[4].json() == first.json()
    assert answers[4].headers["Idempotent-Replayed"] == "true"
    assert answers[6].json() == answers[7].json()
    refusals = [[each["code"] for each in answers[index].json()["reasons"]] for index in (2, 3, 5)]
    assert refusals == [["unknown_sku"], ["quota_exceeded"], ["idempotency_key_reused"]]
    assert emptied_plane.rows(CLAIMED) == [(5,)]
    assert emptied_plane.rows(UNUSED_KEYS) == [(0,)]
    assert keyed(emptied_plane, "unknown", sku="other").status_code == 404
    codes = [each["code"] for each in keyed(emptied_plane, "unknown").json()["reasons"]]
    assert codes == ["quota_exceeded"], "a refused request leaves its key unused"
