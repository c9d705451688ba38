"""The link aspect: what a slice's machine is plugged into, there before the machine and gone after it.

It is a tap, made and deleted here, unless the slot's card is a virtual function. The frames of one come from a link of
the host too, its representor, which the card makes and nobody can delete: it is taken under the slot's name and given
back under one of its own, down. So all else knows a slot's link by one name, whatever it is.

A tap is persistent, so that it outlives the agent, and owned by root: a tap without an owner may be opened by any
user of the host. Either is mute: the virtual switch takes its frames, but with the userspace datapath the host's own
stack sees them too, and would answer ARP and IPv6 around the bridge and all its guards. A slot's link is the agent's as
a whole: whatever other programs added to it (addresses, queueing disciplines, filters, programs, links that are stacked
on it) is removed, since the flows of the switch guard nothing that leaves the link before it. A name is taken once on a
host; if something else bears it, that goes first, or adding would be refused. A crash leaves a link that is down, or
none of that name: the plan goes on from either.
"""

from dataclasses import dataclass
from hashlib import sha256
from typing import Final, Protocol

from events.values import MacAddress, PciAddress
from node_agent.passthrough import NO_REPRESENTOR, PciBus
from node_agent.places import NO_PLACES, Places, place_for
from node_agent.slices import Difference, HostRefused, Slice, SliceNetwork, Step
from tasks.drift import DriftKind

DEFAULT_MTU: Final = 1500


@dataclass(frozen=True, slots=True)
class Alterations:
    """What other programs added to a link of the agent, in words; a link as declared has none.

    `diversions` let another link have its frames, or send in its name, past all flows: filters that mirror or redirect,
    programs that may do so, links that are stacked on it. `others` change only how its own frames are handled:
    addresses, queueing disciplines, another MAC.
    """

    diversions: frozenset[str] = frozenset()
    others: frozenset[str] = frozenset()

    def __bool__(self) -> bool:
        return bool(self.diversions or self.others)

    def __str__(self) -> str:
        return ", ".join(sorted((*self.diversions, *self.others)))


UNALTERED: Final = Alterations()


@dataclass(frozen=True, slots=True)
class Tap:
    """A link as wanted or found. MTU in bytes.

    `owner` is a user id; None lets every user of the host open it. `mute`: the host speaks neither ARP nor IPv6 on it.
    `many`: it has a queue for each time that it is opened, and is no tap to a program that wants just one. `master` is
    the link that takes its frames, which no flow guards then; the virtual switch is none. `alterations` is what other
    programs added to the link.
    """

    name: str
    mtu: int = DEFAULT_MTU
    up: bool = True
    owner: int | None = 0
    mute: bool = True
    many: bool = False
    master: str | None = None
    alterations: Alterations = UNALTERED


@dataclass(frozen=True, slots=True)
class OtherLink:
    """A link of another kind (veth, bridge, representor) that bears the name of a tap."""

    name: str
    kind: str


@dataclass(frozen=True, slots=True)
class Representor:
    """The settings of a link that others made: its card, as a rule. MTU in bytes; the others as a tap's."""

    name: str
    mtu: int = DEFAULT_MTU
    up: bool = True
    mute: bool = True
    master: str | None = None
    alterations: Alterations = UNALTERED


class Links(Protocol):
    """The host's links. Reads raise `HostUnreadable`. Changes raise `HostRefused` when the answer was no, and
    `HostUnreadable` when there was none: the change may then have been made.
    """

    def link(self, name: str) -> Tap | OtherLink | None: ...

    def is_carried(self, name: str) -> bool:
        """Whether a program holds the tap's other end; one that was deleted and made anew is held by nobody."""
        ...

    def add_tap(self, tap: Tap) -> None:
        """Make a persistent tap; refused when the name is taken."""
        ...

    def set_tap(self, tap: Tap) -> None:
        """Set MTU, state and muteness of a tap that exists, take it from its master, and remove all alterations."""
        ...

    def delete_link(self, name: str) -> None:
        """Delete; no link of that name counts as done."""
        ...

    def representor(self, number: int) -> Representor | None:
        """The link that bears the kernel's number."""
        ...

    def set_representor(self, number: int, to: Representor) -> None:
        """Name and set the link of that number, which is down meanwhile, take it from its master, and remove all
        alterations; refused when another link has the name."""
        ...


def _words(link: Tap | OtherLink | None) -> str:
    match link:
        case None:
            return "no link"
        case OtherLink(name=name, kind=kind):
            return f"{kind} link {name}"
        case Tap() as tap:
            owner = "anybody" if tap.owner is None else f"user {tap.owner}"
            queues = ", with many queues" if tap.many else ""
            return (
                f"tap {tap.name}, {_state(tap)}, of {owner}, {_voice(tap)}{queues}{_hold(tap)}{_added(tap)}"
            )


def _representor_words(link: Representor | None) -> str:
    return (
        "no link"
        if link is None
        else f"link {link.name}, {_state(link)}, {_voice(link)}{_hold(link)}{_added(link)}"
    )


def _state(link: Tap | Representor) -> str:
    return f"{'up' if link.up else 'down'}, {link.mtu} bytes"


def _voice(link: Tap | Representor) -> str:
    return "mute" if link.mute else "heard by the host"


def _hold(link: Tap | Representor) -> str:
    return f", held by {link.master}" if link.master else ""


def _added(link: Tap | Representor) -> str:
    return f", with {link.alterations}" if link.alterations else ""


def _kind(found: Tap | Representor | OtherLink | None) -> DriftKind:
    match found:
        case None:
            return "link.absent"
        case Tap(alterations=alterations) | Representor(alterations=alterations) if alterations.diversions:
            return "link.diverted"
        case _:
            return "link.changed"


def own_mac(name: str) -> MacAddress:
    """The MAC of the host's end of a slot's tap, which follows from its name.

    It is locally administered and differs from that of every guest and gateway. With another's MAC the host's own stack
    would take frames that are addressed to that one.
    """
    return MacAddress("fe:53:" + ":".join(f"{byte:02x}" for byte in sha256(name.encode()).digest()[:4]))


def resting_name(vf: PciAddress) -> str:
    """Of the representor of a virtual function that no slice has; a name has 15 characters, and no colon."""
    return f"vf{vf.replace(':', '-')}"[-15:]


class LinkAspect:
    """`places` says which slots' machines have a virtual function, or a card of several queues."""

    name = "link"

    def __init__(self, links: Links, bus: PciBus, places: Places = NO_PLACES, mtu: int = DEFAULT_MTU) -> None:
        self._links, self._bus, self._places, self._mtu = links, bus, places, mtu

    def to_apply(self, wanted: Slice) -> tuple[Step, ...]:
        place, name = place_for(wanted, self._places), wanted.network.tap
        if place.vf is not None:
            return self._to_take(place.vf, Representor(name, self._mtu))
        return self._to_make(Tap(name, self._mtu, many=place.queues > 1))

    def to_remove(self, gone: SliceNetwork) -> tuple[Step, ...]:
        return self._clearing(gone.tap)

    def remains(self, gone: SliceNetwork) -> tuple[str, ...]:
        match self._links.link(gone.tap):
            case None:
                return ()
            case Tap(name=name):
                return (f"tap {name}",)
            case OtherLink() as other:
                return (_words(other),)

    to_stop, still_on = to_remove, remains

    def _to_make(self, wanted: Tap) -> tuple[Step, ...]:
        found = self._links.link(wanted.name)
        if found == wanted:
            return ()
        differs = Difference(_kind(found), _words(wanted), _words(found))
        match found:
            case Tap(owner=owner, many=many) if (owner, many) == (wanted.owner, wanted.many):
                return (Step("link.set_tap", lambda: self._links.set_tap(wanted), differs),)
            case _:
                # A kind, an owner or a mode cannot be changed in place, and the name must be free before it is used
                # again.
                add = Step("link.add_tap", lambda: self._links.add_tap(wanted), differs)
                return (*self._clearing(wanted.name, differs), add)

    def _to_take(self, vf: PciAddress, wanted: Representor) -> tuple[Step, ...]:
        number = self._bus.devices().behind(vf)
        found = self._links.representor(number) if number is not None else None
        if found == wanted:
            return ()
        of = f", of virtual function {vf}"
        differs = Difference(_kind(found), _representor_words(wanted) + of, _representor_words(found) + of)
        taking = Step("link.take", lambda: self._take(vf, wanted), differs)
        is_named = found is not None and found.name == wanted.name
        return (*(() if is_named else self._clearing(wanted.name, differs)), taking)

    def _take(self, vf: PciAddress, wanted: Representor) -> None:
        number = self._bus.devices().behind(vf)
        if number is None:
            raise HostRefused(f"PCI device {vf} {NO_REPRESENTOR}")
        self._links.set_representor(number, wanted)

    def _clearing(self, name: str, mends: Difference | None = None) -> tuple[Step, ...]:
        """Have no link of that name."""
        found = self._links.link(name)
        if found is None:
            return ()
        taken = self._taken(name) if isinstance(found, OtherLink) else None
        if taken is None:
            return (Step("link.delete", lambda: self._links.delete_link(name), mends),)
        number, resting = taken
        return (Step("link.give_back", lambda: self._links.set_representor(number, resting), mends),)

    def _taken(self, name: str) -> tuple[int, Representor] | None:
        """The representor that bears a slot's name, whatever the settings say by now, and how it is at rest."""
        for address, number in self._bus.devices().representors():
            found = self._links.representor(number)
            if found is not None and found.name == name:
                return number, Representor(resting_name(address), self._mtu, up=False)
        return None
