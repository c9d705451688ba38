"""The API extends the lease of an allocation, and the new end decides when the allocation is released (ALC-10)."""

from datetime import UTC, datetime, timedelta
from functools import partial

import pytest

from control_plane.settings import SettingsRefused, read_settings
from tests.api.allocations.test_quotas import limit
from tests.api.node import admit, allocate
from tests.api.reporting import RunningAllocation
from tests.servers.plane import RunningPlane
from tests.waiting import until

TOO_LONG = {
    "code": "lease_too_long",
    "message": "a lease of 3601 s is longer than the SKU lab.small allows (3600 s); request at most 3600 s",
    "field": "/lease_seconds",
    "parameter": None,
}


@pytest.fixture
def running(emptied_plane: RunningPlane) -> RunningAllocation:
    return RunningAllocation(emptied_plane, admit(emptied_plane, "n1"))


def renew(running: RunningAllocation, seconds: int) -> dict[str, object]:
    answer = running.plane.client().post(f"/allocations/{running.id}/lease", json={"lease_seconds": seconds})
    return {"status": answer.status_code, **answer.json()}


def end_of_lease(running: RunningAllocation) -> datetime:
    return datetime.fromisoformat(running.view()["lease"]["expires_at"])


def test_renewed_lease_ends_after_the_requested_time_and_a_shorter_one_changes_nothing(
    running: RunningAllocation,
) -> None:
    before = running.view()["lease"]

    assert renew(running, 100_000)["status"] == 200

    after, now = running.view()["lease"], datetime.now(UTC)
    assert after["granted_at"] == before["granted_at"]
    assert abs(end_of_lease(running) - now - timedelta(seconds=100_000)) < timedelta(seconds=60)
    assert running.event_types()[-1] == "lease_renewed"
    shorter = renew(running, 60)
    assert (shorter["status"], shorter["lease"]) == (200, after)
    assert running.event_types().count("lease_renewed") == 1


def test_timer_of_an_allocation_follows_its_renewed_lease(running: RunningAllocation) -> None:
    assert renew(running, 200_000)["status"] == 200
    first_announcement = end_of_lease(running) - timedelta(hours=24)
    query = "select due_at from work.timer where stream_id = %(stream)s"
    due = partial(running.plane.rows, query, stream=f"allocation-{running.id}")
    until(
        lambda: due() == [(first_announcement,)], "the timer is due a day before the end of the renewed lease"
    )


def test_lease_is_limited_by_the_sku_version_of_the_allocation_at_its_creation_and_at_each_renewal(
    emptied_plane: RunningPlane,
) -> None:
    def publish(**limit: int) -> None:
        content = {"vcpus": 1, "memory_mib": 96, **limit}
        assert emptied_plane.client().put("/skus/lab.small", json=content).is_success

    node = admit(emptied_plane, "n1")
    publish(max_lease_seconds=3600)
    refused = allocate(emptied_plane, lease_seconds=3601)
    assert (refused.status_code, refused.json()["reasons"]) == (409, [TOO_LONG])
    running = RunningAllocation(emptied_plane, node, lease_seconds=3600)
    publish()
    refused_renewal = renew(running, 3601)
    assert (refused_renewal["status"], refused_renewal["reasons"]) == (409, [TOO_LONG])
    assert running.event_types().count("lease_renewed") == 0
    assert renew(running, 3600)["status"] == 200
    assert running.event_types().count("lease_renewed") == 1


def test_lease_limit_of_a_project_applies_at_creation_and_at_renewals_of_older_allocations(
    emptied_plane: RunningPlane,
) -> None:
    def shown(sources: list[tuple[str, int]], seconds: int) -> list[str]:
        return [
            f"a lease of {seconds} s is longer than the {source} allows ({most} s); request at most {most} s"
            for source, most in sources
        ]

    node = admit(emptied_plane, "n1")
    content = {"vcpus": 1, "memory_mib": 96, "max_lease_seconds": 4000}
    assert emptied_plane.client().put("/skus/lab.small", json=content).is_success
    running = RunningAllocation(emptied_plane, node, lease_seconds=600)
    assert limit(emptied_plane, max_lease_seconds=3000)["limits"]["max_lease_seconds"] == 3000
    for seconds, sources in [
        (3001, [("project default", 3000)]),
        (4001, [("SKU lab.small", 4000), ("project default", 3000)]),
    ]:
        refused = allocate(emptied_plane, lease_seconds=seconds)
        assert [each["message"] for each in refused.json()["reasons"]] == shown(sources, seconds)
        refused_renewal = renew(running, seconds)
        assert refused_renewal["status"] == 409
        assert refused_renewal["reasons"] == refused.json()["reasons"]
    assert renew(running, 3000)["status"] == 200
    limit(emptied_plane)
    assert renew(running, 3001)["status"] == 200


def test_lease_limit_of_zero_seconds_is_refused(emptied_plane: RunningPlane) -> None:
    answer = emptied_plane.client().put("/projects/default/limits", json={"max_lease_seconds": 0})
    assert (answer.status_code, answer.json()["reasons"][0]["field"]) == (422, "/max_lease_seconds")


def test_released_allocation_cannot_renew_its_lease(running: RunningAllocation) -> None:
    assert running.plane.client().delete(f"/allocations/{running.id}").is_success
    refused = renew(running, 7200)
    assert refused["status"] == 409
    assert "wrong_state" in str(refused["reasons"])


def test_invalid_lead_times_of_lease_announcements_are_refused_by_the_settings(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SLICEPLANE_DATABASE_URL", "postgresql://u:p@127.0.0.1/d")
    monkeypatch.setenv("SLICEPLANE_REDIS_URL", "redis://:p@127.0.0.1:6379")
    assert read_settings().lease_leads == (timedelta(hours=24), timedelta(hours=1))
    monkeypatch.setenv("SLICEPLANE_LEASE_EXPIRING_SECONDS", "[]")
    assert read_settings().lease_leads == ()
    monkeypatch.setenv("SLICEPLANE_LEASE_EXPIRING_SECONDS", "[3600, 0]")
    with pytest.raises(SettingsRefused, match=r"\[3600, 0\] is not a list of at most 16 positive numbers"):
        read_settings()
