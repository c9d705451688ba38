"""The check of histories of claims accepts possible histories, and rejects forged ones."""

import random

import pytest

from tests.faults.claims.history import Grant, Refusal, Span, objections

SLOTS = ("slot a/0", "slot a/1")


def grant(slot: int, granted: tuple[float, float], released: tuple[float, float], *more: str) -> Grant:
    return Grant(frozenset({SLOTS[slot], *more}), Span(*granted), Span(*released))


def refusal(begin: float, end: float) -> Refusal:
    return Refusal(Span(begin, end))


def test_claims_check_accepts_a_possible_history_of_consecutive_and_overlapping_requests() -> None:
    grants = [
        grant(0, (0, 1), (2, 4)),
        grant(
            0, (1.5, 3), (6, 7)
        ),  # sent while the first allocation was still held, and granted after its release
        grant(1, (0, 5), (6, 7)),
    ]
    assert objections(SLOTS, grants, [refusal(3.5, 4.5), refusal(0.5, 3)]) == ()


def test_claims_check_accepts_a_refusal_while_a_request_that_waited_for_its_answer_holds_the_slot() -> None:
    grants = [
        grant(0, (2, 3), (4, 5)),
        grant(0, (1, 6), (8, 9)),  # sent first, and granted after the release of the other one
        grant(1, (0, 1), (8, 9)),
    ]
    assert objections(SLOTS, grants, [refusal(5.5, 7)]) == ()


@pytest.mark.parametrize(
    ("grants", "refusals", "reason"),
    [
        (
            [grant(0, (0, 1), (3, 4)), grant(0, (1.5, 2), (5, 6))],
            [],
            "slot a/0 was granted twice: until 3.000000 and from 2.000000",
        ),
        (
            [grant(0, (0, 1), (3, 4), "port 1"), grant(1, (0, 2), (5, 6), "port 1")],
            [],
            "port 1 was granted twice: until 3.000000 and from 2.000000",
        ),
        (
            [grant(0, (0, 1), (5, 6))],
            [refusal(2, 3)],
            "a request was refused from 2.000000 to 3.000000, while slot a/1 was free all the time",
        ),
        (
            [grant(0, (0, 1), (5, 6)), grant(1, (0, 1), (2, 3)), grant(1, (7, 8), (9, 10))],
            [refusal(4, 6.5)],
            "a request was refused from 4.000000 to 6.500000, while slot a/1 was free all the time",
        ),
        (
            [grant(0, (2, 3), (4, 5)), grant(0, (1, 6), (8, 9)), grant(1, (0, 1), (12, 13))],
            [refusal(10, 11)],
            "a request was refused from 10.000000 to 11.000000, while slot a/0 was free all the time",
        ),
    ],
    ids=["slot", "port", "never-used", "between-two-grants", "after-two-grants"],
)
def test_claims_check_rejects_an_impossible_history_with_the_contradiction(
    grants: list[Grant], refusals: list[Refusal], reason: str
) -> None:
    assert objections(SLOTS, grants, refusals) == (reason,)


def test_claims_check_finds_one_changed_grant_in_a_long_possible_history() -> None:
    chance = random.Random(7)
    for _ in range(50):
        grants, now = list[Grant](), dict.fromkeys(SLOTS, 0.0)
        for slot in chance.choices(range(2), k=60):
            begin = now[SLOTS[slot]] + chance.random()
            grants.append(grant(slot, (begin, begin + 1), (begin + 3, begin + 4)))
            now[SLOTS[slot]] = begin + 3.5
        assert objections(SLOTS, grants, ()) == ()
        forged = chance.randrange(len(grants))
        others = [each for each in grants if each is not grants[forged]]
        same = [each for each in others if each.resources == grants[forged].resources]
        victim = chance.choice(same)
        # The forged grant lies within the certain hold of another one.
        moved = grants[forged]._replace(
            granted=Span(victim.granted.end, victim.granted.end + 0.5),
            released=Span(victim.released.begin - 0.1, victim.released.end),
        )
        assert objections(SLOTS, [*others, moved], ()) != ()
