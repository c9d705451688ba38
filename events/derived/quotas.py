"""What facts add to the use of quotas, and take from it (ALC-13).

A quota limits what a project, or a caller in all projects, has at a time. A slot counts from its claim until it is free
again, also while it is releasing or quarantined; a public address or port counts from the reservation of its ingress
rule until the rule is removed. The fact that frees something repeats what it counted, so each fact by itself states by
how much the use changes. An append and a rebuild derive the same numbers from the facts.

The use of a holder is divided into shards: an allocation changes only one of them, so that concurrent requests of one
project do not wait for each other's row.
"""

import operator
from decimal import Decimal
from typing import Final, NamedTuple
from zlib import crc32

from events.allocations import AllocationDequeued, AllocationQueued
from events.facts import Fact
from events.ingress import IngressRemoved, IngressReserved, IngressRule
from events.slots import SlotClaimed, SlotForceReleased, SlotReleased, SlotUse
from events.values import AllocationId, ProjectId, StreamId, stream_of_principal, stream_of_project

SHARDS: Final = 16
"""Number of rows over which the use of each holder is divided."""


class QuotaUse(NamedTuple):
    """Amounts that limits are compared with. The fields have the names of the limits."""

    slots: int = 0
    gpus: int = 0
    vcpus: int = 0
    memory_mib: int = 0
    public_addresses: int = 0
    public_ports: int = 0
    waiting_requests: int = 0
    price_per_hour: Decimal = Decimal(0)

    def plus(self, other: "QuotaUse") -> "QuotaUse":
        """Return these amounts plus those of `other`."""
        return QuotaUse._make(map(operator.add, self, other))

    def minus(self, other: "QuotaUse") -> "QuotaUse":
        """Return these amounts minus those of `other`."""
        return QuotaUse._make(map(operator.sub, self, other))


class UseChange(NamedTuple):
    """Amounts that are added to one shard of the use of a holder, which is the stream of a project or a principal."""

    holder: StreamId
    shard: int
    amounts: QuotaUse


NOTHING_USED: Final = QuotaUse()
ONE_WAITING: Final = QuotaUse(waiting_requests=1)
COUNTED: Final = (
    SlotClaimed,
    SlotReleased,
    SlotForceReleased,
    IngressReserved,
    IngressRemoved,
    AllocationQueued,
    AllocationDequeued,
)
"""The types of facts that change the use of quotas."""


def use_changes(fact: Fact) -> tuple[UseChange, ...]:
    """Return how a fact changes the use of quotas."""
    match fact:
        case SlotClaimed(allocation_id=allocation, use=SlotUse() as use):
            return _of_slot(allocation, use, amounts_of_slot(use))
        case (
            SlotReleased(allocation_id=allocation, use=SlotUse() as use)
            | SlotForceReleased(allocation_id=allocation, use=SlotUse() as use)
        ):
            return _of_slot(allocation, use, NOTHING_USED.minus(amounts_of_slot(use)))
        case IngressReserved(allocation_id=allocation, rule=rule, project=str() as project):
            return (_of_project(allocation, ProjectId(project), amounts_of_rule(rule)),)
        case IngressRemoved(allocation_id=allocation, rule=rule, project=str() as project):
            return (_of_project(allocation, ProjectId(project), NOTHING_USED.minus(amounts_of_rule(rule))),)
        case AllocationQueued(allocation_id=allocation, project=project):
            return (_of_project(allocation, project, ONE_WAITING),)
        case AllocationDequeued(allocation_id=allocation, project=project):
            return (_of_project(allocation, project, NOTHING_USED.minus(ONE_WAITING)),)
        case _:
            return ()


def amounts_of_slot(use: SlotUse) -> QuotaUse:
    """Return the amounts that one slot counts towards quotas."""
    return QuotaUse(
        slots=1,
        gpus=use.gpus,
        vcpus=use.vcpus,
        memory_mib=use.memory_mib,
        price_per_hour=Decimal(use.price_per_hour),
    )


def amounts_of_rule(rule: IngressRule) -> QuotaUse:
    """Return the amounts that one ingress rule counts towards quotas: a whole public address, or one port."""
    return QuotaUse(public_addresses=1) if rule.service is None else QuotaUse(public_ports=1)


def _of_slot(allocation: AllocationId, use: SlotUse, amounts: QuotaUse) -> tuple[UseChange, ...]:
    return (
        _of_project(allocation, use.project, amounts),
        UseChange(stream_of_principal(use.principal), _shard(allocation), amounts),
    )


def _of_project(allocation: AllocationId, project: ProjectId, amounts: QuotaUse) -> UseChange:
    return UseChange(stream_of_project(project), _shard(allocation), amounts)


def _shard(allocation: AllocationId) -> int:
    return crc32(allocation.encode()) % SHARDS
