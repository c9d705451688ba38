"""Whether a slice is reachable, decided from probes and their answers. This module only computes: it sends no probe and
reads no clock.

A probe is a TCP SYN, sent again with the same sequence number until it is answered: the guest's kernel answers it, and
the connection is never opened. Its path is one of two:

    gateway    from the gateway's address over the bridge, to the port at which the slice's readiness was proved
    ingress    from the uplink's side of the packet filter, to the public address and port of an ingress

An ingress is evaluated only while the gateway's probe is answered, because otherwise the failure is at an earlier hop.
A path without a result yet is reported neither as reachable nor as unreachable. UDP ingresses have no probe, because an
empty datagram would reach the tenant's service, which does not have to answer it.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final, Literal, assert_never

from events.values import IngressId, Ipv4Address, MacAddress
from node_agent.host.slices import Difference, Slice, SliceNetwork
from tasks.orders import AddressMapping, PortMapping
from tasks.orders import Mapping as Ingress

PROBE_LINK: Final = "sp-probe"
"""The agent's TUN device, from which probes of ingresses come and to which their answers go."""
PROBE_ADDRESS: Final = Ipv4Address("192.0.2.254")
"""Source address of probes of ingresses, from TEST-NET-1 (RFC 5737), which no host uses."""

PERIOD: Final = 5.0
"""Seconds between the answer to a probe and the next probe of the same path."""
RETRY, SLOW_RETRY = 0.5, 1.0
"""Seconds from an unanswered probe to its repetition: `RETRY` until the path counts as failed, then `SLOW_RETRY`."""
SILENCE: Final = 5.0
"""Seconds without an answer until a path counts as failed: longer than an emulated guest stalls on a busy host."""
TRIES: Final = 8
"""Minimum number of unanswered probes before a path counts as failed, so that a stall of the agent itself does not
count as a failure of the path."""
REFUSED: Final = 30.0
"""Seconds for which the probed port of a slice must be closed before the path counts as failed, because a service may
restart."""

Hop = Literal["gateway", "address", "port", "ingress"]
Key = IngressId | None
"""Key of a network path to a slice: the id of the ingress, or None for the path from the gateway."""


class _Unknown(Enum):
    UNKNOWN = "unknown"


UNKNOWN: Final = _Unknown.UNKNOWN
Findings = Mapping[Key, Difference | None]
"""Findings by path: the drift, or None if the path is reachable. A path without an entry has no result yet."""


@dataclass(frozen=True, slots=True)
class Path:
    """A network path to a port of a guest, from its gateway or by an ingress.

    `public` is the public address and port of the ingress; None for the path from the gateway.
    """

    network: SliceNetwork
    port: int
    ingress_id: Key = None
    public: tuple[Ipv4Address, int] | None = None

    @property
    def destination(self) -> tuple[Ipv4Address, int]:
        """The address and port to which a probe of this path is sent."""
        return self.public or (self.network.ip, self.port)


@dataclass(frozen=True, slots=True)
class Neighbour:
    """The ARP entry that the host has for a slice. `mac` is None while the slice answers no ARP request."""

    mac: MacAddress | None


@dataclass(frozen=True, slots=True)
class HostView:
    """How the host reaches a slice: the link of the route to it, or the reason why there is no route, and the ARP entry
    of the slice.
    """

    link: str | None
    refusal: str = ""
    neighbour: Neighbour | None = None


def paths_of(wanted: Slice, port: int) -> tuple[Path, ...]:
    """Return the network paths to a slice that are probed, the path from the gateway first.

    `port` is the port that answered the slice's readiness check.
    """
    from_gateway = Path(wanted.network, port)
    match wanted.network_mode:
        case "private-nat":
            return (from_gateway,)
        case "public-nat":
            return from_gateway, *_ingress_paths(wanted.network, wanted.ingress, port)
        case mode:
            assert_never(mode)


def _ingress_paths(network: SliceNetwork, ingresses: Iterable[Ingress], port: int) -> Iterator[Path]:
    for each in ingresses:
        match each:
            case PortMapping(protocol="tcp"):
                public = (each.public_address, each.public_port)
                yield Path(network, each.port, each.ingress_id, public)
            case PortMapping():
                pass
            case AddressMapping():
                yield Path(network, port, each.ingress_id, (each.public_address, port))
            case _:
                assert_never(each)


class PathProbes:
    """Probes of one network path to a slice.

    An exchange is a probe, its repetitions and the answer; exchanges follow one another.
    """

    def __init__(self, path: Path, now: float) -> None:
        self.path = path
        self.sequence = 0
        self.due = now
        """Monotonic time at which the next probe is to be sent."""
        self.requested_at: float | None = None
        """Monotonic time of the first probe since the last answer; None if no probe is unanswered."""
        self.tries = 0
        self.answered_at: float | None = None
        self.refused_since: float | None = None
        self.misled = ""
        """Description of what answered a probe instead of the guest; empty if nothing did."""
        self.unsent = ""
        """Reason why the last probe could not be sent; empty if it was sent."""

    def send(self, now: float, sequence: int) -> None:
        """Record that a probe (TCP SYN) is sent now. The first probe of an exchange gets this sequence number."""
        if self.requested_at is None:
            self.requested_at, self.sequence, self.tries = now, sequence, 0
        self.tries += 1
        self.due = now + (RETRY if now < self.requested_at + SILENCE else SLOW_RETRY)

    def answer(self, now: float, *, refused: bool) -> None:
        """Record the guest's answer to a probe; `refused`: the probed port is closed."""
        self.requested_at, self.answered_at, self.misled = None, now, ""
        self.due = now + PERIOD
        self.refused_since = (self.refused_since or now) if refused else None

    def mislead(self, by: str) -> None:
        """Record that `by` answered a probe instead of the guest, which counts as no answer."""
        self.misled = by

    def hurry(self, now: float) -> None:
        """Make the next probe of this path due now, because the host may have changed."""
        if self.requested_at is None:
            earliest = now if self.answered_at is None else self.answered_at + RETRY
            self.due = min(self.due, max(now, earliest))

    def restart(self, now: float) -> None:
        """Count the time without an answer from now on, because another fault explains that earlier probes were not
        answered.
        """
        if self.requested_at is not None:
            self.requested_at, self.tries, self.due = now, 0, now

    def silence(self, now: float) -> float | None:
        """Return the seconds since the first probe without an answer, or None if too few probes are unanswered to count
        as a failure.
        """
        if self.requested_at is None or self.tries < TRIES or now < self.requested_at + SILENCE:
            return None
        return now - self.requested_at

    def refusal(self, now: float) -> float | None:
        """Return the seconds since the port was first found closed, or None if the time is too short to count as a
        failure.
        """
        if self.refused_since is None or now < self.refused_since + REFUSED:
            return None
        return now - self.refused_since


class SliceProbes:
    """Probes of all network paths to one slice."""

    def __init__(self, paths: Iterable[Path], now: float) -> None:
        own, *ingresses = paths
        self.network = own.network
        self.gateway = PathProbes(own, now)
        self.ingresses = {path.ingress_id: PathProbes(path, now) for path in ingresses}
        self.findings: Findings = {}

    def update(self, paths: Iterable[Path], now: float) -> None:
        """Probe exactly the given paths from now on. Paths that were already probed keep their state."""
        own, *ingresses = paths
        if own != self.gateway.path:
            self.gateway = PathProbes(own, now)
        before = self.ingresses
        kept = {key: each for key, each in before.items() if each.path in ingresses}
        self.ingresses = {
            path.ingress_id: kept.get(path.ingress_id) or PathProbes(path, now) for path in ingresses
        }
        self.findings = {key: found for key, found in self.findings.items() if key is None or key in kept}

    @property
    def all(self) -> tuple[PathProbes, ...]:
        return (self.gateway, *self.ingresses.values())

    def hurry(self, now: float) -> None:
        """Make the next probe of each path due now, because the host may have changed."""
        for course in self.all:
            course.hurry(now)

    def answer(self, course: PathProbes, now: float, *, refused: bool) -> None:
        """Record that the guest answered a probe of one path."""
        if course is self.gateway and course.tries > 1:
            # The ingresses got no answers for the same reason as the gateway.
            for each in self.ingresses.values():
                each.restart(now)
        course.answer(now, refused=refused)

    def compare_hops(self, now: float) -> None:
        """If an ingress may have failed, send the next probe from the gateway now, so that both paths are compared."""
        if any(each.tries > 1 and self.findings.get(key) is None for key, each in self._silent()):
            self.gateway.hurry(now)

    def _silent(self) -> Iterator[tuple[Key, PathProbes]]:
        return ((key, each) for key, each in self.ingresses.items() if each.requested_at is not None)

    def is_open(self, now: float) -> bool:
        """Whether the newest probe from the gateway to the slice is neither answered nor counted as failed yet."""
        return self.gateway.requested_at is not None and self.gateway.silence(now) is None

    def judged(self, now: float, view: Callable[[], HostView]) -> Findings:
        """Return the result for each path to the slice. `view` reads the host's route to the slice, and is called only
        if the slice does not answer its gateway.
        """
        own = self.gateway
        if self.is_open(now):
            return self.findings
        if own.requested_at is not None:
            return {None: _silent(own, own.silence(now) or 0.0, view())}
        if own.answered_at is None:
            return {}
        ingresses = {key: self._of_ingress(key, each, now) for key, each in self.ingresses.items()}
        seconds = own.refusal(now)
        wrong = None if seconds is None else _refused(own, seconds)
        return {None: wrong} | {key: found for key, found in ingresses.items() if found is not UNKNOWN}

    def _of_ingress(self, key: Key, course: PathProbes, now: float) -> Difference | _Unknown | None:
        if course.requested_at is None:
            return UNKNOWN if course.answered_at is None else None
        seconds = course.silence(now)
        if seconds is None or course.unsent:
            return self.findings.get(key, UNKNOWN)
        return of_ingress(course, seconds)


def unreached(findings: Findings, wanted: Slice, open_: Iterable[Difference]) -> tuple[Difference, ...]:
    """Return the drift of the network paths to a slice. For a path without a result yet, the drift that is already open
    is returned.
    """
    keys = {None, *(each.ingress_id for each in wanted.ingress)} - findings.keys()
    lasting = (each for each in open_ if each.ingress_id in keys)
    return (*(each for each in findings.values() if each is not None), *lasting)


def _silent(course: PathProbes, seconds: float, view: HostView) -> Difference:
    """Return the drift of a slice that does not answer its gateway's probes, with the first hop that fails."""
    network, lasting = course.path.network, f"for {seconds:.0f} s"
    if view.link != network.bridge:
        sent = f"a route over {view.link}" if view.link else f"the route lookup failed: {view.refusal}"
        return unreachable(f"a route to {network.ip} over {network.bridge}", "gateway", sent)
    if course.unsent:
        sent = f"the host cannot send probes: {course.unsent}"
        return unreachable(_by_port(course.path), "gateway", sent)
    by_arp = f"an answer of {network.ip} to ARP requests on {network.bridge}"
    if view.neighbour is None or view.neighbour.mac is None:
        return unreachable(by_arp, "address", f"no answer to ARP requests {lasting}")
    if view.neighbour.mac != network.mac:
        sent = f"the host sends packets to the MAC {view.neighbour.mac} instead of {network.mac}"
        return unreachable(by_arp, "address", sent)
    answered = course.misled or f"no answer to probes {lasting}, while ARP requests are answered"
    return unreachable(_by_port(course.path), "port", answered)


def _refused(course: PathProbes, seconds: float) -> Difference:
    return unreachable(_by_port(course.path), "port", f"connection refused for {seconds:.0f} s")


def of_ingress(course: PathProbes, seconds: float) -> Difference:
    """Return the drift of an ingress of which the probes got no answer for `seconds`, while probes from the gateway
    were answered.
    """
    path = course.path
    address, port = path.destination
    wanted = f"an answer of {path.network.ip} port {path.port} to probes of {address} port {port}"
    found = course.misled or f"no answer for {seconds:.0f} s, while probes from the gateway are answered"
    return unreachable(wanted, "ingress", found, path.ingress_id)


def _by_port(path: Path) -> str:
    return f"an answer of {path.network.ip} port {path.port} to probes from the gateway"


def unreachable(wanted: str, hop: Hop, found: str, ingress_id: Key = None) -> Difference:
    """Return the drift `slice.unreachable` of a network path that fails at the hop `hop`."""
    return Difference("slice.unreachable", wanted, f"{found} (hop: {hop})", ingress_id)
