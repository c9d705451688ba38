"""Netlink for the lab. pyroute2 comes with the host's drivers only, so it is imported where a socket is opened: what
merely names a lab can be imported anywhere.
"""

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyroute2 import IPRoute


@contextmanager
def open_links() -> Iterator["IPRoute"]:
    """A netlink socket in the network namespace of this process."""
    from pyroute2 import IPRoute

    with IPRoute() as links:
        yield links


def index_of(links: "IPRoute", name: str) -> int:
    """The number of the link called `name`. Raises `LookupError`."""
    found: list[int] = links.link_lookup(ifname=name)
    if not found:
        raise LookupError(f"no link is called {name}")
    return found[0]


def remove(links: "IPRoute", index: int) -> None:
    """Delete a link; one that the kernel has just removed counts as deleted."""
    from pyroute2.netlink.exceptions import NetlinkError

    try:
        links.link("del", index=index)
    except NetlinkError as error:
        if error.code != errno.ENODEV:
            raise
