"""Columns about open drift in the rows of nodes and slots: all open drift (null if there is none), and whether any of
it blocks placement.
"""

from typing import Any

import msgspec

from events.drift import OpenDrift


def drift_columns(drift: tuple[OpenDrift, ...]) -> dict[str, object]:
    """Return the values of the columns `drift` and `blocked` for the given open drift."""
    return {"drift": msgspec.to_builtins(drift) or None, "blocked": any(each.blocks for each in drift)}


def drift_in(column: Any) -> tuple[OpenDrift, ...]:
    """Return the open drift stored in the column `drift`."""
    return msgspec.convert(column or (), tuple[OpenDrift, ...])
