"""Tests of read models that advance together: one transaction writes the rows and checkpoints of all of them."""

from tests.api.node import allocate
from tests.projections.plane_requests import caught_up, change, create_history
from tests.projections.test_stopped_projections import stopped_at
from tests.servers.plane import RunningPlane
from tests.waiting import until

LIVE = ["allocations", "project_events", "holdings", "capacity", "usage"]


def transactions(plane: RunningPlane) -> int:
    """Return the number of transactions that last wrote the checkpoints of the read models."""
    [[number]] = plane.rows(
        "select count(distinct xmin::text) from read.checkpoint where name = any(%(names)s)", names=LIVE
    )
    return int(number)


def test_read_models_at_one_position_advance_in_one_transaction(running_plane: RunningPlane) -> None:
    create_history(running_plane)
    caught_up(running_plane)

    until(lambda: transactions(running_plane) == 1, "one transaction has advanced all read models")


def test_read_models_advance_in_one_transaction_again_after_the_stop_of_one_has_ended(
    running_plane: RunningPlane,
) -> None:
    create_history(running_plane)
    caught_up(running_plane)
    [[last]] = running_plane.rows("select last from ledger.fence()")
    change(running_plane, f"insert into read.holding values ('slot', 'node-a/0', {last + 4}, null)")
    allocate(running_plane)
    until(lambda: stopped_at(running_plane, "holdings") == last + 4, "the projection 'holdings' has stopped")
    until(lambda: transactions(running_plane) > 1, "the other read models advance without 'holdings'")

    change(running_plane, f"delete from read.holding where position = {last + 4}")
    assert running_plane.client().post("/projections/holdings/retry").is_success
    caught_up(running_plane)

    def advance_together() -> bool:
        allocate(running_plane)
        caught_up(running_plane)
        return transactions(running_plane) == 1

    until(advance_together, "one transaction has advanced all read models")
