"""Decisions about quotas and price caps, and what facts add to the use of quotas."""

from decimal import Decimal

import msgspec
import pytest

from control_plane.decisions.quotas import (
    ExceededLimit,
    Limits,
    against_price,
    exceeded_by,
    over_quota,
    times,
)
from deploy.embedded.lab_catalogue import SMALL
from events.allocations import AllocationDequeued, AllocationQueued, AllocationSpecified
from events.derived.quotas import COUNTED, NOTHING_USED, QuotaUse, use_changes
from events.entries import ImageContent, ReadinessCheck, SpecifiedImage, SpecifiedSku
from events.ingress import IngressRemoved, IngressReserved, IngressRule, Service
from events.principals import PrincipalLimits
from events.projects import ProjectLimits
from events.slots import SlotClaimed, SlotForceReleased, SlotReleased, SlotUse
from events.values import (
    ImageName,
    IngressId,
    Ipv4Address,
    ProjectId,
    SkuName,
    stream_of_principal,
    stream_of_project,
)
from tests.decisions.histories import ID, NOW, REASON, A

USE = SlotUse(ProjectId("vision"), "key:ci", 2, 24, 4096, "3.20", SkuName("h200.two"))
AMOUNTS = QuotaUse(slots=1, gpus=2, vcpus=24, memory_mib=4096, price_per_hour=Decimal("3.20"))
NAME = IngressId("ing-01jd3v6w8xf0r9k2m4n6p8q0s3")
PORT = IngressRule(Ipv4Address("203.0.113.7"), Service("tcp", 20022, 22), ())
ADDRESS = IngressRule(Ipv4Address("203.0.113.8"), None, ())


@pytest.mark.parametrize(
    ("limits", "used", "requested", "exceeded"),
    [
        (ProjectLimits(slots=8), QuotaUse(slots=7), QuotaUse(slots=1), []),
        (ProjectLimits(slots=8), QuotaUse(slots=7), QuotaUse(slots=2), ["slots"]),
        (ProjectLimits(slots=0), NOTHING_USED, QuotaUse(slots=1), ["slots"]),
        (ProjectLimits(), QuotaUse(slots=9**9), QuotaUse(slots=1), []),
        # Sums of binary floating-point numbers would exceed the limit: 0.1 + 0.2 > 0.3.
        (
            PrincipalLimits(price_per_hour="0.3"),
            QuotaUse(price_per_hour=Decimal("0.1")),
            QuotaUse(price_per_hour=Decimal("0.20")),
            [],
        ),
        # The project has more than its limit, which was set later: other amounts can still be requested.
        (
            ProjectLimits(slots=1, public_ports=1),
            QuotaUse(slots=5),
            QuotaUse(public_ports=1),
            [],
        ),
        (
            ProjectLimits(slots=1, gpus=1, vcpus=24, memory_mib=4095, price_per_hour="3.19"),
            NOTHING_USED,
            AMOUNTS,
            ["gpus", "memory_mib", "price_per_hour"],
        ),
    ],
)
def test_request_for_more_than_the_rest_of_a_quota_exceeds_the_quota(
    limits: Limits, used: QuotaUse, requested: QuotaUse, exceeded: list[str]
) -> None:
    found = exceeded_by("project", "vision", limits, used, requested)
    assert [each.limit_name for each in found] == exceeded


def test_quota_refusal_states_the_holder_the_limit_the_use_and_the_requested_amount_of_each_exceeded_limit() -> (
    None
):
    limits = ProjectLimits(slots=2, price_per_hour="6.4")
    used = QuotaUse(slots=2, price_per_hour=Decimal("6.40"))
    exceeded = exceeded_by("project", "vision", limits, used, AMOUNTS)
    assert exceeded == [
        ExceededLimit("project", "vision", "slots", "2", "2", "1", "0"),
        ExceededLimit("project", "vision", "price_per_hour", "6.4", "6.4", "3.2", "0"),
    ]
    refusal = over_quota(exceeded)
    assert [(each.code, each.field) for each in refusal.objections] == [
        ("quota_exceeded", "/slot_count"),
        ("quota_exceeded", "/sku"),
    ]
    assert (
        "project vision would exceed its limit of slots: limit 2, used 2, requested 1, remaining 0;"
        in str(refusal)
    )


@pytest.mark.parametrize(("most", "codes"), [(None, []), ("0.03", []), ("0.029999", ["price_too_high"])])
def test_price_cap_is_compared_with_the_price_of_all_slots_together(
    most: str | None, codes: list[str]
) -> None:
    image = ImageContent("kernel", None, 0, "x86_64", None, ReadinessCheck(22, "SSH-"), "root", 0)
    sku = SpecifiedSku(SkuName("lab.small"), 1, msgspec.structs.replace(SMALL, price_per_hour="0.01"))
    specified = AllocationSpecified(ID, sku, SpecifiedImage(ImageName("lab-guest"), 1, image), None)
    assert [each.code for each in against_price(specified, 3, most)] == codes


def test_every_event_that_frees_a_resource_subtracts_from_the_quota_use_what_its_claim_added() -> None:
    before = (SlotClaimed(A, ID, USE), IngressReserved(ID, A, NAME, PORT, None, USE.project))
    assert [each for fact in before for each in use_changes(fact)] == [
        (stream_of_project(USE.project), use_changes(before[0])[0].shard, AMOUNTS),
        (stream_of_principal("key:ci"), use_changes(before[0])[0].shard, AMOUNTS),
        (stream_of_project(USE.project), use_changes(before[0])[0].shard, QuotaUse(public_ports=1)),
    ]
    pairs = [
        (SlotClaimed(A, ID, USE), SlotReleased(A, ID, (), USE)),
        (SlotClaimed(A, ID, USE), SlotForceReleased(A, ID, "", (), USE)),
        *(
            (
                IngressReserved(ID, A, NAME, rule, None, USE.project),
                IngressRemoved(ID, NAME, rule, USE.project),
            )
            for rule in (PORT, ADDRESS)
        ),
        (
            AllocationQueued(ID, USE.project, 0, REASON, NOW, NOW),
            AllocationDequeued(ID, USE.project),
        ),
    ]
    assert {type(fact) for pair in pairs for fact in pair} == set(COUNTED)
    for taken, freed in pairs:
        assert use_changes(taken)
        assert use_changes(freed) == tuple(
            each._replace(amounts=NOTHING_USED.minus(each.amounts)) for each in use_changes(taken)
        )


def test_event_of_the_first_version_without_recorded_amounts_does_not_change_the_quota_use() -> None:
    for fact in (SlotClaimed(A, ID), SlotReleased(A, ID, ()), IngressRemoved(ID, NAME, PORT)):
        assert use_changes(fact) == ()


def test_quota_use_of_several_slots_is_a_multiple_of_the_use_of_one_slot() -> None:
    assert times(AMOUNTS, 3) == QuotaUse(3, 6, 72, 12288, price_per_hour=Decimal("9.60"))
