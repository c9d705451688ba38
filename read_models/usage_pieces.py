"""Pieces of a range of time in which usage is metered, and amounts of usage. Pure functions for `read_models.usage`."""

from datetime import datetime
from decimal import ROUND_HALF_EVEN, Context, Decimal
from enum import StrEnum
from typing import Final, NamedTuple

_SECONDS_PER_HOUR: Final = 3600
_STEP: Final = Decimal("0.000001")
_EXACT: Final = Context(prec=60, rounding=ROUND_HALF_EVEN)
"""Precision of the division: sums are exact before it, and far shorter than 60 digits."""


class EntryKind(StrEnum):
    """Kind of a usage entry."""

    METERED = "metered"


class Piece(NamedTuple):
    """A part of a range of time, in which usage is metered. Times are half-open: from `starts_at` (None: the beginning)
    up to, but not including, `ends_at`.
    """

    kind: EntryKind
    starts_at: datetime | None
    ends_at: datetime


class Amount(NamedTuple):
    """An amount of usage. `slot_seconds` is exact; `price` is rounded."""

    slot_seconds: Decimal
    price: Decimal


def pieces_of(begin: datetime | None, end: datetime) -> list[Piece]:
    """Return the pieces of the range from `begin` (None: the beginning) to `end`, in the order of time."""
    return [Piece(EntryKind.METERED, begin, end)] if begin is None or begin < end else []


def amount_of(slot_seconds: Decimal, weighted: Decimal) -> Amount:
    """Return an amount of usage. `weighted` is the exact sum of slot-seconds, each multiplied by the price per hour of
    its slot.

    The price is rounded here and nowhere else: once for each figure, half to even, to six decimals.
    """
    price = _EXACT.divide(weighted, Decimal(_SECONDS_PER_HOUR))
    return Amount(slot_seconds.quantize(_STEP, context=_EXACT), price.quantize(_STEP, context=_EXACT))
