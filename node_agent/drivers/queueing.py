"""Queueing disciplines and filters of links (tc(8), rtnetlink(7)): what delays, drops, copies or redirects frames.

The kernel gives each new link a discipline of its own choice, under the handle 0. Every other one was set by a program
or an administrator. Most links have only the kernel's, so one listing of all disciplines is read for each look, and
filters only for links on which one could stand.
"""

import errno
import struct
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from pyroute2.netlink import NETLINK_ROUTE
from pyroute2.netlink.rtnl import RTM_DELQDISC, RTM_GETQDISC, RTM_GETTFILTER

from node_agent.drivers.netlink import Refused, attributes, connected, listed
from node_agent.slices import HostRefused, HostUnreadable

_DEADLINE: Final = 5.0
_HEADER: Final = struct.Struct("=BxxxiIII")
"""struct tcmsg (linux/rtnetlink.h): family, link, handle, parent, info."""
_KIND, _OPTIONS = 1, 2
"""TCA_KIND, TCA_OPTIONS"""
_SHARED: Final = (13, 14)
"""TCA_INGRESS_BLOCK and TCA_EGRESS_BLOCK: filters of a block that several links share."""
ROOT: Final = 0xFFFFFFFF
HOOKS: Final = 0xFFFFFFF1
"""TC_H_ROOT, and TC_H_CLSACT (TC_H_INGRESS): the parents of what stands before and behind a link's own queue."""
_PARENTS: Final = {HOOKS: (0xFFFFFFF2, 0xFFFFFFF3)}
"""TC_H_MIN_INGRESS and TC_H_MIN_EGRESS below TC_H_CLSACT: where the filters of these hooks are listed."""
_ACTIONS: Final = {"u32": 7, "matchall": 2, "flower": 3, "bpf": 1, "basic": 3, "fw": 4, "route": 6, "flow": 9}
"""The attribute with the actions of a filter, by its kind (TCA_*_ACT, linux/pkt_cls.h)."""
_U32_SELECTOR: Final = 5
_ACT_KIND, _ACT_OPTIONS = 1, 2
"""TCA_ACT_KIND, TCA_ACT_OPTIONS"""
_MIRRED: Final = struct.Struct("=IIiiiiI")
"""struct tc_mirred: index, capabilities, action, references, bindings, direction, link."""
_MIRRED_PARAMETERS: Final = 2
_DIRECTIONS: Final = {1: "redirects", 2: "mirrors", 3: "redirects", 4: "mirrors"}
"""TCA_EGRESS_REDIR, TCA_EGRESS_MIRROR, TCA_INGRESS_REDIR, TCA_INGRESS_MIRROR"""


class Qdisc(NamedTuple):
    """A discipline that the kernel did not choose by itself. `parent` is its place on the link."""

    kind: str
    parent: int
    handle: int
    is_shared: bool

    @property
    def place(self) -> str:
        return "root" if self.parent == ROOT else "hooks" if self.parent == HOOKS else f"{self.parent:#x}"


class Filter(NamedTuple):
    """A filter by its kind and what its actions do; `to` is the kernel's number of a link that gets the frames."""

    kind: str
    does: str
    to: int | None


def qdiscs() -> Mapping[int, tuple[Qdisc, ...]]:
    """Disciplines that were set, by the kernel's numbers of links. Raises `HostUnreadable`."""
    found: dict[int, tuple[Qdisc, ...]] = {}
    for body in _bodies("queueing disciplines", RTM_GETQDISC, 0, 0):
        _, link, handle, parent, _ = _HEADER.unpack_from(body)
        if handle:
            held = attributes(body, _HEADER.size)
            each = Qdisc(_text(held[_KIND]), parent, handle, not held.keys().isdisjoint(_SHARED))
            found[link] = (*found.get(link, ()), each)
    return found


def filters(link: int, qdisc: Qdisc) -> tuple[Filter, ...]:
    """Return the filters on a discipline of a link. Raises `HostUnreadable`."""
    parents = _PARENTS.get(qdisc.parent, (qdisc.handle,))
    bodies = (body for parent in parents for body in _bodies("filters", RTM_GETTFILTER, link, parent))
    return tuple(dict.fromkeys(found for body in bodies for found in _filters(body)))


def delete(link: int, qdisc: Qdisc) -> None:
    """Delete a discipline with its filters; one that is gone counts as deleted.

    Raises `HostRefused`, `HostUnreadable`.
    """
    what = f"delete qdisc {qdisc.kind} of link {link}"
    try:
        with connected(NETLINK_ROUTE, _DEADLINE) as netlink:
            body = _HEADER.pack(0, link, qdisc.handle, qdisc.parent, 0)
            netlink.tell(RTM_DELQDISC, body, fine=errno.ENOENT)
    except Refused as error:
        raise HostRefused(f"{what}: {error}") from error
    except OSError as error:
        raise HostUnreadable(f"{what}: {error}") from error


def _filters(body: bytes) -> Iterator[Filter]:
    held = attributes(body, _HEADER.size)
    kind = _text(held.get(_KIND, b""))
    options = attributes(held.get(_OPTIONS, b""))
    if not options or (kind == "u32" and _U32_SELECTOR not in options):
        # The head of a list of filters, or a hash table of u32: it matches nothing.
        return
    actions = attributes(options.get(_ACTIONS.get(kind, 0), b""))
    for action in actions.values():
        yield _action(kind, attributes(action))
    if not actions:
        yield Filter(kind, "is there", None)


def _action(kind: str, action: Mapping[int, bytes]) -> Filter:
    does = _text(action.get(_ACT_KIND, b""))
    parameters = attributes(action.get(_ACT_OPTIONS, b"")).get(_MIRRED_PARAMETERS, b"")
    if does != "mirred" or len(parameters) < _MIRRED.size:
        return Filter(kind, does, None)
    *_, direction, link = _MIRRED.unpack_from(parameters)
    return Filter(kind, _DIRECTIONS.get(direction, "sends"), link)


def _bodies(question: str, kind: int, link: int, parent: int) -> Iterator[bytes]:
    asked = _HEADER.pack(0, link, 0, parent, 0)
    try:
        # A kernel without traffic control has none of this on its links.
        found = listed(NETLINK_ROUTE, kind, asked, _DEADLINE, fine=errno.EOPNOTSUPP)
    except (Refused, OSError) as error:
        raise HostUnreadable(f"{question}: {error}") from error
    return (body for _, body in found)


def _text(value: bytes) -> str:
    return value.rstrip(b"\0").decode()
