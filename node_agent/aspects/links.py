"""The link aspect: the host's end of a slice's network card, created before the machine and removed after it.

It is a tap, which the agent creates and deletes, unless the slot's card is a virtual function. The frames of a virtual
function come from its representor, a link that the physical card creates and that cannot be deleted: the agent gives it
the slot's name for the slice's lifetime; afterwards it renames the representor (`idle_name`) and sets it down. So the
slot's link always has the same name for all other aspects.

A tap is persistent, so that it outlives the agent, and owned by root: any user of the host may open a tap without an
owner. The host answers neither ARP nor IPv6 on either kind of link (such a link is *mute*). The virtual switch receives
their frames, but with the userspace datapath the host's own stack receives them too, and would answer ARP and IPv6 past
the bridge and its rules. The agent manages the whole link: anything that other programs added to it (addresses,
queueing disciplines, filters, programs, stacked links) is removed, since the switch's flows do not apply to frames that
leave the link before the switch. A name is unique on a host; another link with the name is removed first, or the
creation would be refused. A crash leaves a link that is down, or no link of that name: the next plan continues from
either.
"""

from dataclasses import dataclass
from hashlib import sha256
from typing import Final, Protocol, assert_never

from events.values import MacAddress, PciAddress
from node_agent.aspects.passthrough import NO_REPRESENTOR, PciBus
from node_agent.host.host_resources import NO_PLACES, Places, place_for
from node_agent.host.slices import Difference, HostRefused, Slice, SliceNetwork, Step
from tasks.drift import DriftKind

DEFAULT_MTU: Final = 1500


@dataclass(frozen=True, slots=True)
class Alterations:
    """Descriptions of changes that other programs made to a link of the agent; empty if there are none.

    `diversions` let another link receive the link's frames, or send frames as this link, without passing a flow:
    filters that mirror or redirect, programs that may do so, stacked links. `others` change only how the link's own
    frames are handled: addresses, queueing disciplines, another MAC.
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
    """A tap, desired or observed. `mtu` is in bytes.

    `owner` is a user id; None lets every user of the host open the tap. `mute` is True if the host answers neither ARP
    nor IPv6 on it. `many` is True for a multi-queue tap, which a program cannot open with a single queue. `master` is a
    link, other than the virtual switch, that receives the tap's frames without any flow. `alterations` are the changes
    by other programs.
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
    """A link that has the name of a slot's tap but is of another kind, such as a veth, a bridge or a representor."""

    name: str
    kind: str


@dataclass(frozen=True, slots=True)
class Representor:
    """Settings of a virtual function's representor, desired or observed. Its fields have the same meaning as the fields
    of `Tap`.
    """

    name: str
    mtu: int = DEFAULT_MTU
    up: bool = True
    mute: bool = True
    master: str | None = None
    alterations: Alterations = UNALTERED


class Links(Protocol):
    """Interface to the network links of a host.

    Reads raise `HostUnreadable`. Changes raise `HostRefused` if the kernel refuses them, and `HostUnreadable` if it
    does not answer: the change may have been made in that case.
    """

    def link(self, name: str) -> Tap | OtherLink | None: ...

    def is_in_use(self, name: str) -> bool:
        """Return whether a program has the tap with this name open. A tap that was deleted and created again under the
        same name does not count as open.
        """
        ...

    def add_tap(self, tap: Tap) -> None:
        """Create a persistent tap. Raises `HostRefused` if a link with its name exists."""
        ...

    def set_tap(self, tap: Tap) -> None:
        """Change an existing tap to these settings, detach it from its master, and undo changes by other programs."""
        ...

    def delete_link(self, name: str) -> None:
        """Delete a network link of the host; do nothing if it does not exist."""
        ...

    def representor(self, number: int) -> Representor | None:
        """Return the settings of the representor with this interface index, or None if the link does not exist."""
        ...

    def set_representor(self, number: int, to: Representor) -> None:
        """Rename and configure the representor with this interface index; the link is down meanwhile.

        The link is detached from its master, and changes by other programs are undone. Raises `HostRefused` if another
        link has the name.
        """
        ...


def _words(link: Tap | OtherLink | None) -> str:
    match link:
        case None:
            return "no link"
        case OtherLink(name=name, kind=kind):
            return f"{kind} link {name}"
        case Tap() as tap:
            owner = "no owner" if tap.owner is None else f"owned by user {tap.owner}"
            queues = ", multi-queue" if tap.many else ""
            return (
                f"tap {tap.name}, {_state(tap)}, {owner}, {_muteness(tap)}{queues}{_master(tap)}{_added(tap)}"
            )


def _representor_words(link: Representor | None) -> str:
    return (
        "no link"
        if link is None
        else f"link {link.name}, {_state(link)}, {_muteness(link)}{_master(link)}{_added(link)}"
    )


def _state(link: Tap | Representor) -> str:
    return f"{'up' if link.up else 'down'}, {link.mtu} bytes"


def _muteness(link: Tap | Representor) -> str:
    return "without ARP and IPv6" if link.mute else "the host answers ARP and IPv6 on this link"


def _master(link: Tap | Representor) -> str:
    return f", attached to {link.master}" if link.master else ""


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
    """Return the MAC of the host's end of a slot's tap.

    The MAC is derived from the tap's name, is locally administered, and differs from the MAC of every guest and
    gateway: with the MAC of a guest, the host's own stack would accept frames that are addressed to the guest.
    """
    return MacAddress("fe:53:" + ":".join(f"{byte:02x}" for byte in sha256(name.encode()).digest()[:4]))


def idle_name(vf: PciAddress) -> str:
    """Return the name of the representor of an unused virtual function; at most 15 characters, without a colon."""
    return f"vf{vf.replace(':', '-')}"[-15:]


class LinkAspect:
    """Aspect `link` of all slots: the tap or representor that connects a slice. `places` defines which slots have a
    virtual function or a multi-queue card. `mtu` is in bytes.
    """

    name = "link"

    def __init__(self, links: Links, bus: PciBus, places: Places = NO_PLACES, mtu: int = DEFAULT_MTU) -> None:
        self._links, self._bus, self._places, self._mtu = links, bus, places, mtu

    def to_apply(self, desired: Slice) -> tuple[Step, ...]:
        match desired.network_mode:
            case "private-nat" | "public-nat":
                return self._to_connect(desired)
            case mode:
                assert_never(mode)

    def _to_connect(self, desired: Slice) -> tuple[Step, ...]:
        """Return the steps that connect the slice to the node's bridge."""
        place, name = place_for(desired, self._places), desired.network.tap
        if place.vf is not None:
            return self._to_take(place.vf, Representor(name, self._mtu))
        return self._to_make(Tap(name, self._mtu, many=place.queues > 1))

    def to_remove(self, gone: SliceNetwork) -> tuple[Step, ...]:
        return self._to_clear(gone.tap)

    def remains(self, gone: SliceNetwork) -> tuple[str, ...]:
        match self._links.link(gone.tap):
            case None:
                return ()
            case Tap(name=name):
                return (f"tap {name}",)
            case OtherLink() as other:
                return (_words(other),)

    to_stop, still_on = to_remove, remains

    def _to_make(self, desired: Tap) -> tuple[Step, ...]:
        found = self._links.link(desired.name)
        if found == desired:
            return ()
        differs = Difference(_kind(found), _words(desired), _words(found))
        match found:
            case Tap(owner=owner, many=many) if (owner, many) == (desired.owner, desired.many):
                return (Step("link.set_tap", lambda: self._links.set_tap(desired), differs),)
            case _:
                # A link's kind, owner and mode cannot be changed in place, and its name must be free before it is used
                # again.
                add = Step("link.add_tap", lambda: self._links.add_tap(desired), differs)
                return (*self._to_clear(desired.name, differs), add)

    def _to_take(self, vf: PciAddress, desired: Representor) -> tuple[Step, ...]:
        number = self._bus.devices().behind(vf)
        found = self._links.representor(number) if number is not None else None
        if found == desired:
            return ()
        suffix = f", of virtual function {vf}"
        differs = Difference(
            _kind(found), _representor_words(desired) + suffix, _representor_words(found) + suffix
        )
        take = Step("link.take", lambda: self._take(vf, desired), differs)
        is_named = found is not None and found.name == desired.name
        return (*(() if is_named else self._to_clear(desired.name, differs)), take)

    def _take(self, vf: PciAddress, desired: Representor) -> None:
        number = self._bus.devices().behind(vf)
        if number is None:
            raise HostRefused(f"PCI device {vf} {NO_REPRESENTOR}")
        self._links.set_representor(number, desired)

    def _to_clear(self, name: str, repaired: Difference | None = None) -> tuple[Step, ...]:
        """Return the steps that free a link name: the link is deleted, or a representor is renamed."""
        found = self._links.link(name)
        if found is None:
            return ()
        claimed = self._claimed_representor(name) if isinstance(found, OtherLink) else None
        if claimed is None:
            return (Step("link.delete", lambda: self._links.delete_link(name), repaired),)
        number, idle = claimed
        return (Step("link.give_back", lambda: self._links.set_representor(number, idle), repaired),)

    def _claimed_representor(self, name: str) -> tuple[int, Representor] | None:
        """Return the interface index of the representor that was renamed to a slot's name, and the name and settings
        that it gets when no slice uses it.
        """
        for address, number in self._bus.devices().representors():
            found = self._links.representor(number)
            if found is not None and found.name == name:
                return number, Representor(idle_name(address), self._mtu, up=False)
        return None
