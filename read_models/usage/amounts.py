"""Amounts of usage, and the kinds of entries. Pure."""

from decimal import ROUND_HALF_EVEN, Context, Decimal
from enum import StrEnum
from typing import Final, NamedTuple

_SECONDS_PER_HOUR: Final = 3600
_STEP: Final = Decimal("0.000001")
_EXACT: Final = Context(prec=60, rounding=ROUND_HALF_EVEN)
"""Precision of the division: sums are exact before it, and far shorter than 60 digits."""


class EntryKind(StrEnum):
    """Kind of a usage entry: usage of the range or period, the reversal of an entry of a closed period, or the entry
    that replaces a reversed one.
    """

    METERED = "metered"
    REVERSAL = "reversal"
    RE_ENTRY = "re_entry"


class Amount(NamedTuple):
    """An amount of usage. `slot_seconds` is exact; `price` is rounded."""

    slot_seconds: Decimal
    price: Decimal


NOTHING: Final = Amount(Decimal(0).quantize(_STEP), Decimal(0).quantize(_STEP))


def amount_of(slot_seconds: Decimal, weighted: Decimal) -> Amount:
    """Return an amount of usage. `weighted` is the exact sum of slot-seconds, each multiplied by the price per hour of
    its slot.

    The price is rounded here and nowhere else: once for each figure, half to even, to six decimals.
    """
    price = _EXACT.divide(weighted, Decimal(_SECONDS_PER_HOUR))
    return Amount(slot_seconds.quantize(_STEP, context=_EXACT), price.quantize(_STEP, context=_EXACT))
