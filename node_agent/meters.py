"""The limits of what a slice sends and gets (NOD-3): two OpenFlow meters in each slot whose order sets a rate.

IP goes through them (`flows`), and what is above the rate is dropped. ARP and broadcasts of DHCP go by them: both end
at the gateway, and a guest that has used up its rate would lose its neighbour, and its lease, as well.

A flow that names a meter is never there without it: the switch refuses such a flow, and whoever deletes a meter
deletes its flows. So meters are made before the flows and deleted after them, and a slice whose meter is taken away is
mute, not unlimited.

Meters are numbered from their slot, beginning with 1: a switch has only so many, and refuses numbers above that.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from events.values import MAX_SLOTS, SlotIndex
from node_agent.slices import SliceNetwork

_BURST_KBIT: Final = 800
"""At once, for each Mbit/s: 0.8 s of the rate, which lets TCP come near it, and at 1 Mbit/s more than the 64 KiB that
a kernel hands over in one piece."""
_LAST: Final = 2 * MAX_SLOTS


@dataclass(frozen=True, slots=True)
class Meter:
    """Lets through `rate_kbps` kbit/s, and `burst_kbit` kbit at once after a pause; drops the rest."""

    rate_kbps: int
    burst_kbit: int


def from_slice(index: SlotIndex) -> int:
    """The number of the meter of what a slice sends."""
    return 2 * index + 1


def to_slice(index: SlotIndex) -> int:
    """The number of the meter of what a slice gets."""
    return 2 * index + 2


def meters_of(slice_: SliceNetwork) -> dict[int, Meter]:
    if slice_.rate_mbit is None:
        return {}
    meter = Meter(1000 * slice_.rate_mbit, _BURST_KBIT * slice_.rate_mbit)
    return {from_slice(slice_.index): meter, to_slice(slice_.index): meter}


def in_slot(index: SlotIndex, found: Mapping[int, Meter | None]) -> dict[int, Meter | None]:
    """Those of a bridge's meters that are the slot's."""
    return {number: found[number] for number in (from_slice(index), to_slice(index)) if number in found}


def foreign_meters(found: Iterable[int]) -> tuple[int, ...]:
    """Numbers of meters that no slot has."""
    return tuple(sorted(number for number in found if number > _LAST))


def in_words(meters: Mapping[int, Meter | None]) -> str:
    return ", ".join(f"meter {number}: {_words(meters[number])}" for number in sorted(meters)) or "no meter"


def _words(meter: Meter | None) -> str:
    if meter is None:
        return "of another kind"
    return f"{meter.rate_kbps} kbit/s, {meter.burst_kbit} kbit at once"
