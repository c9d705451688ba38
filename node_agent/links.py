"""The link aspect: the tap that a slice's machine plugs into, made before the machine and deleted after it.

A tap is persistent, so that it outlives the agent, and owned by root: a tap without an owner may be opened by any
user of the host. It is mute: the virtual switch takes its frames, but with the userspace datapath the host's own
stack sees them too, and would answer ARP and IPv6 around the bridge and all its guards. A name is taken once on a
host; if something else bears it, that goes first, or adding would be refused. A crash leaves a tap that is down, or
none: the plan goes on from either.
"""

from dataclasses import dataclass
from typing import Final, Protocol

from node_agent.places import NO_PLACES, Places, place_for
from node_agent.slices import Difference, Slice, SliceNetwork, Step

DEFAULT_MTU: Final = 1500


@dataclass(frozen=True, slots=True)
class Tap:
    """A link as wanted or found. MTU in bytes.

    `owner` is a user id; None lets every user of the host open it. `mute`: the host speaks neither ARP nor IPv6 on it.
    `many`: it has a queue for each time that it is opened, and is no tap to a program that wants just one.
    """

    name: str
    mtu: int = DEFAULT_MTU
    up: bool = True
    owner: int | None = 0
    mute: bool = True
    many: bool = False


@dataclass(frozen=True, slots=True)
class OtherLink:
    """A link of another kind (veth, bridge) that bears the name of a tap."""

    name: str
    kind: str


class Links(Protocol):
    """The host's links. Reads raise `HostUnreadable`, changes raise `HostRefused`."""

    def link(self, name: str) -> Tap | OtherLink | None: ...

    def is_carried(self, name: str) -> bool:
        """Whether a program holds the tap's other end; one that was deleted and made anew is held by nobody."""
        ...

    def add_tap(self, tap: Tap) -> None:
        """Make a persistent tap; refused when the name is taken."""
        ...

    def set_tap(self, tap: Tap) -> None:
        """Set MTU, state and muteness of a tap that exists."""
        ...

    def delete_link(self, name: str) -> None:
        """Delete; no link of that name counts as done."""
        ...


def plan(wanted: Tap, found: Tap | OtherLink | None, links: Links) -> tuple[Step, ...]:
    if found == wanted:
        return ()
    differs = Difference("link.changed" if found else "link.absent", _words(wanted), _words(found))
    add = Step("link.add_tap", lambda: links.add_tap(wanted), differs)
    match found:
        case None:
            return (add,)
        case Tap(owner=owner, many=many) if (owner, many) == (wanted.owner, wanted.many):
            return (Step("link.set_tap", lambda: links.set_tap(wanted), differs),)
        case _:
            # A kind, an owner or a mode cannot be changed in place, and the name must be free before it is used again.
            return (Step("link.delete", lambda: links.delete_link(wanted.name), differs), add)


def _words(link: Tap | OtherLink | None) -> str:
    match link:
        case None:
            return "no link"
        case OtherLink(name=name, kind=kind):
            return f"{kind} link {name}"
        case Tap() as tap:
            return _tap_words(tap)


def _tap_words(tap: Tap) -> str:
    state, voice = "up" if tap.up else "down", "mute" if tap.mute else "heard by the host"
    owner = "anybody" if tap.owner is None else f"user {tap.owner}"
    queues = ", with many queues" if tap.many else ""
    return f"tap {tap.name}, {state}, {tap.mtu} bytes, of {owner}, {voice}{queues}"


class LinkAspect:
    """`places` says which slots' machines have cards of several queues."""

    name = "link"

    def __init__(self, links: Links, places: Places = NO_PLACES, mtu: int = DEFAULT_MTU) -> None:
        self._links, self._places, self._mtu = links, places, mtu

    def to_apply(self, wanted: Slice) -> tuple[Step, ...]:
        tap = Tap(wanted.network.tap, self._mtu, many=place_for(wanted, self._places).queues > 1)
        return plan(tap, self._links.link(tap.name), self._links)

    def to_remove(self, gone: SliceNetwork) -> tuple[Step, ...]:
        if self._links.link(gone.tap) is None:
            return ()
        return (Step("link.delete", lambda: self._links.delete_link(gone.tap)),)

    def remains(self, gone: SliceNetwork) -> tuple[str, ...]:
        match self._links.link(gone.tap):
            case None:
                return ()
            case Tap(name=name):
                return (f"tap {name}",)
            case OtherLink() as other:
                return (_words(other),)

    to_stop, still_on = to_remove, remains
