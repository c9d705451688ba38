"""Netlink requests with which the lab creates and deletes links.

pyroute2 is installed only with the host drivers. This module imports it when it opens a socket, so that a program that
only refers to a lab can import this module on any machine.
"""

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyroute2 import IPRoute


@contextmanager
def open_links() -> Iterator["IPRoute"]:
    """Open a netlink socket in the network namespace of this process."""
    from pyroute2 import IPRoute

    with IPRoute() as links:
        yield links


def index_of(links: "IPRoute", name: str) -> int:
    """Return the interface index of the link `name`. Raises `LookupError`."""
    found: list[int] = links.link_lookup(ifname=name)
    if not found:
        raise LookupError(f"link {name} does not exist")
    return found[0]


def remove(links: "IPRoute", index: int) -> None:
    """Delete a network link. A link that the kernel has already removed is ignored."""
    from pyroute2.netlink.exceptions import NetlinkError

    try:
        links.link("del", index=index)
    except NetlinkError as error:
        if error.code != errno.ENODEV:
            raise
