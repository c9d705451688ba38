"""Tests of the limit of access log rows: of one source for requests without valid credentials, and of one principal for
requests that a quota refuses.
"""

import pytest

from control_plane.api.audit.entries import Entry
from control_plane.api.audit.sources import ROWS, SECONDS, SOURCES, Sources, is_limited, network_of


class _Clock:
    """A clock that a test advances."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def entry(number: int, source: str = "192.0.2.1", route: str = "/v1/nodes") -> Entry:
    return Entry(f"req-{number}", "GET", "/", source, route=route, status=401, reasons=("unknown_key",))


def rows(sources: Sources, *entries: Entry) -> list[Entry]:
    return [sources.row_of(each) for each in entries]


def own(entries: list[Entry], found: list[Entry]) -> int:
    """Return the number of entries that got an access log row of their own, which counts no other request."""
    return sum(each is row and row.closed for each, row in zip(entries, found, strict=True))


def test_requests_of_a_source_beyond_the_access_log_limit_are_counted_by_route_and_reason() -> None:
    sources = Sources(_Clock())
    given = [entry(number) for number in range(ROWS + 10)]
    found = rows(sources, *given)
    assert own(given, found) == ROWS
    counting = found[-1]
    assert (counting, counting.count, counting.closed) == (given[ROWS], 10, False)
    assert sources.row_of(other := entry(999, route="/v1/skus")) is other
    assert sources.row_of(entry(1000, route="/v1/skus")) is other
    assert other.count == 2


def test_source_beyond_its_access_log_limit_does_not_limit_other_sources() -> None:
    sources = Sources(_Clock())
    rows(sources, *(entry(number) for number in range(ROWS + 10)))
    others = [entry(number, "192.0.2.2") for number in range(ROWS)]
    assert own(others, rows(sources, *others)) == ROWS


def test_source_addresses_of_one_ipv6_network_share_an_access_log_limit() -> None:
    sources = Sources(_Clock())
    given = [entry(number, f"2001:db8::{number:x}") for number in range(1, ROWS + 11)]
    assert own(given, rows(sources, *given)) == ROWS
    neighbour = entry(0, "2001:db8:0:1::1")
    assert sources.row_of(neighbour) is neighbour
    assert neighbour.closed


def throttled(number: int, principal: str = "key:one") -> Entry:
    """Return the access log entry of a refused request: the quota of `principal` was exceeded. Each `number` has
    another session and another client address.
    """
    return Entry(
        f"req-{number}",
        "GET",
        f"/v1/nodes/{number}",
        f"192.0.2.{number}",
        route="/v1/nodes/{node}",
        principal=principal,
        credential=f"ses-{number}",
        status=429,
        reasons=("rate_limited",),
    )


def test_access_log_rows_of_requests_that_a_principals_quota_refuses_are_limited_over_all_its_addresses() -> (
    None
):
    sources = Sources(_Clock())
    given = [throttled(number) for number in range(ROWS + 10)]
    found = rows(sources, *given)
    assert own(given, found) == ROWS
    assert given[0].credential == "ses-0"
    counting = found[-1]
    assert (counting.count, counting.closed, counting.principal) == (10, False, "key:one")
    assert (counting.path, counting.credential, counting.source) == ("", None, None)
    other = throttled(999, "key:two")
    assert sources.row_of(other) is other
    assert other.closed


def test_each_rate_limited_principal_beyond_the_maximum_number_of_sources_gets_one_log_row_with_a_count() -> (
    None
):
    sources = Sources(_Clock())
    rows(sources, *(throttled(number, f"key:{number}") for number in range(SOURCES)))
    rows(sources, *(throttled(number, f"key:a-{number}") for number in range(ROWS)))
    one, other, again = throttled(1, "key:b"), throttled(2, "key:c"), throttled(3, "key:b")
    assert [id(row) for row in rows(sources, one, other, again)] == [id(one), id(other), id(one)]
    assert (one.principal, one.count) == ("key:b", 2)
    assert (other.principal, other.count) == ("key:c", 1)


def test_access_log_rows_are_limited_only_without_a_principal_or_after_a_refusal_by_a_quota() -> None:
    found = Entry("req-1", "GET", "/", None, principal="key:one", reasons=("role_missing",))
    assert not is_limited(found)
    assert is_limited(throttled(1))
    assert is_limited(entry(1))


@pytest.mark.parametrize(
    ("source", "network"),
    [
        ("203.0.113.5", "203.0.113.5"),
        ("::ffff:203.0.113.5", "203.0.113.5"),
        ("::FFFF:cb00:7105", "203.0.113.5"),
        ("::1", "::/64"),
        ("2001:db8:0:1:ffff::1", "2001:db8:0:1::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("/run/api.sock", "/run/api.sock"),
        ("", ""),
    ],
)
def test_access_log_limit_applies_to_an_ipv4_address_or_to_an_ipv6_network(source: str, network: str) -> None:
    assert network_of(source) == network


def test_access_log_row_that_counts_requests_is_closed_after_its_minute_and_the_source_gets_new_rows() -> (
    None
):
    clock = _Clock()
    sources = Sources(clock)
    found = rows(sources, *(entry(number) for number in range(ROWS + 10)))
    assert list(sources.ended()) == []
    clock.now += SECONDS
    assert list(sources.ended()) == [found[-1]]
    assert found[-1].closed
    again = entry(1000)
    assert sources.row_of(again) is again
    assert again.closed


def test_sources_beyond_the_maximum_share_one_access_log_limit() -> None:
    sources = Sources(_Clock())
    rows(sources, *(entry(number, f"10.0.{number // 256}.{number % 256}") for number in range(SOURCES)))
    given = [entry(number, f"10.9.{number // 256}.{number % 256}") for number in range(ROWS + 10)]
    assert own(given, rows(sources, *given)) == ROWS


def test_access_log_row_of_requests_that_are_only_counted_has_no_path_source_or_principal() -> None:
    sources = Sources(_Clock())
    first, second = entry(1), entry(2, "192.0.2.2")
    first.principal = "key:one"
    assert sources.count(first) is first
    assert sources.count(second) is first
    assert [first.path, first.source, first.principal, first.count] == ["", None, None, 2]
