"""Rate limits of a slice (NOD-3): two OpenFlow meters per slot, one for each direction, if the order sets a rate.

IP packets pass the meters (`flows`); packets above the rate are dropped. ARP and DHCP broadcasts bypass them: both end
at the gateway, and a guest that has used up its rate would otherwise lose its ARP entry and its DHCP lease too.

A flow cannot name a meter that does not exist: the switch refuses such a flow, and deleting a meter deletes its flows.
So meters are added before the flows and deleted after them, and a slice without its meter is cut off, not unlimited.

Meter numbers are derived from the slot index and begin with 1: they must be low, because a switch refuses numbers above
its limit.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from events.values import MAX_SLOTS, SlotIndex
from node_agent.host.slices import SliceNetwork

_BURST_KBIT: Final = 800
"""Burst size of a meter in kbit for each Mbit/s of its rate, which is the traffic of 0.8 s. With this size, TCP nearly
reaches the rate, and even the burst at 1 Mbit/s is larger than the 64 KiB that a kernel passes on in one piece."""
_LAST: Final = 2 * MAX_SLOTS


@dataclass(frozen=True, slots=True)
class Meter:
    """An OpenFlow meter: passes `rate_kbps` kbit/s, and `burst_kbit` kbit at once after a pause, and drops the rest."""

    rate_kbps: int
    burst_kbit: int


def from_slice(index: SlotIndex) -> int:
    """Return the number of the OpenFlow meter that limits the traffic from a slice."""
    return 2 * index + 1


def to_slice(index: SlotIndex) -> int:
    """Return the number of the OpenFlow meter that limits the traffic to a slice."""
    return 2 * index + 2


def meters_of(slice_: SliceNetwork) -> dict[int, Meter]:
    """Return the desired meters of a slice by number; empty if its rate is unlimited."""
    if slice_.rate_mbit is None:
        return {}
    meter = Meter(1000 * slice_.rate_mbit, _BURST_KBIT * slice_.rate_mbit)
    return {from_slice(slice_.index): meter, to_slice(slice_.index): meter}


def in_slot(index: SlotIndex, found: Mapping[int, Meter | None]) -> dict[int, Meter | None]:
    """Return those of the given OpenFlow meters that belong to the slot with this index, by meter number."""
    return {number: found[number] for number in (from_slice(index), to_slice(index)) if number in found}


def foreign_meters(found: Iterable[int]) -> tuple[int, ...]:
    """Return the numbers of an OVS bridge's meters that belong to no slot."""
    return tuple(sorted(number for number in found if number > _LAST))


def describe_meters(meters: Mapping[int, Meter | None]) -> str:
    """Describe OpenFlow meters by number, rate and burst."""
    return ", ".join(f"meter {number}: {_words(meters[number])}" for number in sorted(meters)) or "no meter"


def _words(meter: Meter | None) -> str:
    if meter is None:
        return "of another kind"
    return f"{meter.rate_kbps} kbit/s, burst of {meter.burst_kbit} kbit"
