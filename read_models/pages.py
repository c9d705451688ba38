"""Keyset pagination: a page begins after the last row of the previous page, so that rows that were added or removed in
between neither repeat nor hide others.
"""

from collections.abc import Sequence
from typing import Any, TypeVar

import sqlalchemy as sa

S = TypeVar("S", bound="sa.Select[Any]")


def keyset(
    query: S,
    columns: Sequence[sa.ColumnElement[Any]],
    after: Sequence[object] | None,
    limit: int,
    *,
    descending: bool = False,
) -> S:
    """Return a query for one page in the order of `columns`, which together are unique. It begins after the row with
    the values `after`, or at the beginning.
    """
    if after is not None:
        place = sa.tuple_(*(sa.literal(value) for value in after))
        row = sa.tuple_(*columns)
        query = query.where(row < place if descending else row > place)
    return query.order_by(*(each.desc() if descending else each for each in columns)).limit(limit)
