"""Queueing disciplines and filters of links (tc(8), rtnetlink(7)), which can delay, drop, copy or redirect frames.

The kernel assigns a default discipline with the handle 0 to each new link. Every other discipline was set by a program
or an administrator. Most links have only the default. One listing of all disciplines is therefore read per snapshot,
and filters are read only for links that may have some.
"""

import errno
import struct
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from pyroute2.netlink import NETLINK_ROUTE
from pyroute2.netlink.rtnl import RTM_DELQDISC, RTM_GETQDISC, RTM_GETTFILTER

from node_agent.drivers.network.netlink import Refused, attributes, connected, listed
from node_agent.host.slices import HostRefused, HostUnreadable

_DEADLINE: Final = 5.0
_HEADER: Final = struct.Struct("=BxxxiIII")
"""Layout of struct tcmsg (linux/rtnetlink.h): family, link, handle, parent, info."""
_KIND, _OPTIONS = 1, 2
"""Attribute types TCA_KIND and TCA_OPTIONS."""
_SHARED: Final = (13, 14)
"""Attribute types TCA_INGRESS_BLOCK and TCA_EGRESS_BLOCK: number of a block of filters that several links share."""
ROOT: Final = 0xFFFFFFFF
HOOKS: Final = 0xFFFFFFF1
"""Parent handles of queueing disciplines: `ROOT` (TC_H_ROOT) of a link's root discipline, and `HOOKS` (TC_H_CLSACT,
equal to TC_H_INGRESS) of the discipline that provides the ingress and egress hooks."""
_PARENTS: Final = {HOOKS: (0xFFFFFFF2, 0xFFFFFFF3)}
"""Parent handles under which the kernel lists the filters of a discipline with the parent `HOOKS`: TC_H_MIN_INGRESS and
TC_H_MIN_EGRESS below TC_H_CLSACT."""
_ACTIONS: Final = {"u32": 7, "matchall": 2, "flower": 3, "bpf": 1, "basic": 3, "fw": 4, "route": 6, "flow": 9}
"""Attribute with the actions of a filter, by the kind of the filter (TCA_*_ACT, linux/pkt_cls.h)."""
_U32_SELECTOR: Final = 5
_ACT_KIND, _ACT_OPTIONS = 1, 2
"""Attribute types TCA_ACT_KIND and TCA_ACT_OPTIONS."""
_MIRRED: Final = struct.Struct("=IIiiiiI")
"""Layout of struct tc_mirred: index, capabilities, action, references, bindings, direction, link."""
_MIRRED_PARAMETERS: Final = 2
_DIRECTIONS: Final = {1: "redirects", 2: "mirrors", 3: "redirects", 4: "mirrors"}
"""Effect of a mirred action, by its direction (TCA_EGRESS_REDIR, TCA_EGRESS_MIRROR, TCA_INGRESS_REDIR,
TCA_INGRESS_MIRROR)."""


class Qdisc(NamedTuple):
    """A queueing discipline that is not the kernel's default.

    `parent` is the handle of the object to which the discipline is attached: `ROOT`, `HOOKS`, or a class of another
    discipline. `is_shared` is true if the discipline's filters are in a block that several links share.
    """

    kind: str
    parent: int
    handle: int
    is_shared: bool

    @property
    def place(self) -> str:
        return "root" if self.parent == ROOT else "hooks" if self.parent == HOOKS else f"{self.parent:#x}"


class Filter(NamedTuple):
    """A traffic filter (tc) of a link, with its kind and action; `to` is the index of the link to which it sends
    frames, or None.
    """

    kind: str
    does: str
    to: int | None


def qdiscs() -> Mapping[int, tuple[Qdisc, ...]]:
    """Return the non-default queueing disciplines of all links, by interface index. Raises `HostUnreadable`."""
    found: dict[int, tuple[Qdisc, ...]] = {}
    for body in _bodies("queueing disciplines", RTM_GETQDISC, 0, 0):
        _, link, handle, parent, _ = _HEADER.unpack_from(body)
        if handle:
            held = attributes(body, _HEADER.size)
            each = Qdisc(_text(held[_KIND]), parent, handle, not held.keys().isdisjoint(_SHARED))
            found[link] = (*found.get(link, ()), each)
    return found


def filters(link: int, qdisc: Qdisc) -> tuple[Filter, ...]:
    """Return the traffic filters that are attached to a queueing discipline of a link. Raises `HostUnreadable`."""
    parents = _PARENTS.get(qdisc.parent, (qdisc.handle,))
    bodies = (body for parent in parents for body in _bodies("filters", RTM_GETTFILTER, link, parent))
    return tuple(dict.fromkeys(found for body in bodies for found in _filters(body)))


def delete(link: int, qdisc: Qdisc) -> None:
    """Delete a queueing discipline of a link with its filters; a missing discipline is ignored.

    Raises `HostRefused`, `HostUnreadable`.
    """
    operation = f"delete queueing discipline {qdisc.kind} of the link with index {link}"
    try:
        with connected(NETLINK_ROUTE, _DEADLINE) as netlink:
            body = _HEADER.pack(0, link, qdisc.handle, qdisc.parent, 0)
            netlink.execute(RTM_DELQDISC, body, ignored_error=errno.ENOENT)
    except Refused as error:
        raise HostRefused(f"cannot {operation}: {error}") from error
    except OSError as error:
        raise HostUnreadable(f"cannot {operation}: {error}") from error


def _filters(body: bytes) -> Iterator[Filter]:
    held = attributes(body, _HEADER.size)
    kind = _text(held.get(_KIND, b""))
    options = attributes(held.get(_OPTIONS, b""))
    if not options or (kind == "u32" and _U32_SELECTOR not in options):
        # The head of a filter list or a u32 hash table, neither of which matches packets.
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


def _bodies(objects: str, kind: int, link: int, parent: int) -> Iterator[bytes]:
    request = _HEADER.pack(0, link, 0, parent, 0)
    try:
        # A kernel without traffic control has no disciplines and filters.
        found = listed(NETLINK_ROUTE, kind, request, _DEADLINE, ignored_error=errno.EOPNOTSUPP)
    except (Refused, OSError) as error:
        raise HostUnreadable(f"cannot list {objects}: {error}") from error
    return (body for _, body in found)


def _text(value: bytes) -> str:
    return value.rstrip(b"\0").decode()
