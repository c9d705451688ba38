"""How open drift stands in the rows of nodes and slots: all of it in one column, null where there is none, and whether
any of it blocks in another.
"""

from typing import Any

import msgspec

from events.drift import OpenDrift


def drift_columns(drift: tuple[OpenDrift, ...]) -> dict[str, object]:
    """What stands in the two columns."""
    return {"drift": msgspec.to_builtins(drift) or None, "blocked": any(each.blocks for each in drift)}


def drift_in(column: Any) -> tuple[OpenDrift, ...]:
    """What the first of them says."""
    return msgspec.convert(column or (), tuple[OpenDrift, ...])
