"""Pages of lists with filters on values that are computed and are not columns, such as the state of an allocation.

Rows are read in the order of the list, and those with views that do not match are omitted. One request reads a bounded
number of rows, so that a filter that matches few of them cannot occupy the server; the cursor of its page continues
there.
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import Final, Protocol, TypeVar

from control_plane.api.requests.pages import Page
from control_plane.api.views.allocation_views import AllocationView
from control_plane.api.views.views import NodeView

MAX_ROWS_READ: Final = 500
"""Maximum number of rows that one request with such a filter reads, if a view needs nothing but its own history."""
_CHUNK: Final = 100
Row = TypeVar("Row")
Key = TypeVar("Key")
View = TypeVar("View", bound=AllocationView | NodeView)
_Row = TypeVar("_Row", covariant=True)
_Key = TypeVar("_Key", contravariant=True)


class ReadRows(Protocol[_Key, _Row]):
    """Function that reads the next rows of a list, after the row with the sort key `after`."""

    async def __call__(self, *, after: _Key | None, limit: int) -> Sequence[_Row]: ...


async def filtered(
    read: ReadRows[Key, Row],
    identify: Callable[[Row], tuple[str, Key]],
    view: Callable[[Sequence[Row]], Awaitable[Sequence[View]]],
    matches: Callable[[View], bool] | None,
    *,
    after: Key | None,
    limit: int,
    max_rows_read: int = MAX_ROWS_READ,
) -> Page[View]:
    """Return a page of the views that match, found among at most `max_rows_read` rows; a page of all views if `matches`
    is None.

    `identify` returns the id of the resource of a row, and its sort key. `view` returns the views of rows in their
    order; it may omit resources.
    """
    items: list[View] = []
    left = max_rows_read
    while True:
        size = limit if matches is None else min(max(limit, _CHUNK), left)
        rows = await read(after=after, limit=size)
        keys = dict(map(identify, rows))
        left -= len(rows)
        for each in await view(rows):
            if matches is None or matches(each):
                items.append(each)
                if len(items) == limit and each.id != identify(rows[-1])[0]:
                    return Page(items=items, next_cursor=str(keys[each.id]))
        if len(rows) < size:
            return Page(items=items, next_cursor=None)
        after = identify(rows[-1])[1]
        if len(items) == limit or matches is None or left <= 0:
            return Page(items=items, next_cursor=str(after))
