"""Login to a slice with ssh(1): the address, the network namespace and the options.

On a machine that runs `./dev up` with real nodes, the addresses of slices exist only in network namespaces. The client
reads two fields of the configuration file that `./dev up` writes, also if the user logged in with a context.
`namespaces` names, for each node and kind of endpoint, the file with the id of a process in the namespace from which
the endpoint is reachable. `identity` is the private key for the allocation that `./dev up` creates. To log in to slices
of other nodes, plain ssh is enough.
"""

import os
import shlex
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from control_plane.cli.failures import Refused, WrongUsage
from control_plane.client.answers import AllocatedSlot, Allocation, Ingress

SSH_PORT: Final = 22
"""Default port of SSH (RFC 4253)."""
NODE, PUBLIC, GATEWAY = "node", "public", "gateway"
_OPTIONS: Final = (
    # Addresses are reused by later guests, and a guest generates its host key at boot: a stored host key would be that
    # of another guest, and ssh would refuse to connect.
    *("-o", "UserKnownHostsFile=/dev/null"),
    *("-o", "StrictHostKeyChecking=no"),
    *("-o", "LogLevel=ERROR"),  # otherwise it warns about the new host key each time
    *(
        "-o",
        "ConnectTimeout=15",
    ),  # otherwise it waits two minutes for an address that cannot be reached from here
)


@dataclass(frozen=True, slots=True)
class Login:
    """Address of a slice's SSH server. `via`: `node` if reachable only from its own node, `public` if from outside, and
    `gateway` if it is a name at the SSH gateway. `gateway` is then the user and the address of the gateway, and
    `host_key` its public key; empty if the user's own known hosts have to contain it.
    """

    node_id: str
    via: str
    address: str
    port: int
    gateway: str = ""
    host_key: str = ""


def login_of(
    found: Allocation, slot: int | None, via: str | None, local: Container[str] = frozenset()
) -> Login:
    """Return how to log in to a slot of an allocation, counted from 0: by a published ingress to port 22, else through
    the SSH gateway, else by the private address, which comes first on `local` nodes. Raises `Refused`, or `WrongUsage`
    if the user must choose another slot or `--via`.
    """
    if found.state != "active":
        reason = f": {found.reason.message}" if found.reason else ""
        raise Refused(f"allocation {found.id} is {found.state}, not active{reason}", *_advice(found))
    chosen = _chosen(found, slot)
    private, gateway = _private(found, chosen), _through_gateway(found, chosen)
    inside = [*private, *gateway] if chosen.node_id in local else [*gateway, *private]
    logins = [*_public(found, chosen), *inside]
    fitting = [login for login in logins if via in (None, login.via)]
    if not fitting:
        by = {
            None: "",
            NODE: " at its private address",
            PUBLIC: " that is reachable from outside",
            GATEWAY: " through an SSH gateway",
        }[via]
        raise Refused(
            f"slot {chosen.slot_id} of allocation {found.id} has no SSH endpoint{by}",
            *_alternatives(found, logins),
        )
    return fitting[0]


def can_log_in(found: Allocation, slot: int) -> bool:
    """Return whether a login to the slot of the allocation is possible."""
    try:
        login_of(found, slot, None)
    except (Refused, WrongUsage):
        return False
    return True


def _advice(found: Allocation) -> tuple[str, ...]:
    match found.state:
        case "stopped":
            return (f"start the allocation: sliceplane allocations start {found.id}",)
        case "requested" | "placed" | "provisioning" | "starting" | "stopping":
            return (f"wait for the allocation: sliceplane allocations watch {found.id}",)
        case _:
            return ("list the active allocations: sliceplane allocations list",)


def _chosen(found: Allocation, slot: int | None) -> AllocatedSlot:
    count = len(found.slots)
    if slot is None and count > 1:
        slots = (f"{index} is {each.slot_id} ({each.private_ip})" for index, each in enumerate(found.slots))
        raise WrongUsage(
            f"allocation {found.id} has {count} slots, and ssh connects to one of them: {', '.join(slots)}",
            "choose one with --slot NUMBER",
        )
    if (slot or 0) >= count:
        raise WrongUsage(
            f"allocation {found.id} has no slot {slot or 0}",
            "omit --slot, because the allocation has one slot"
            if count == 1
            else f"choose a slot from 0 to {count - 1}: --slot NUMBER",
        )
    return found.slots[slot or 0]


def _public(found: Allocation, slot: AllocatedSlot) -> list[Login]:
    return [
        Login(slot.node_id, PUBLIC, ingress.public_address, ingress.public_port or SSH_PORT)
        for ingress in found.ingress
        if ingress.slot_id == slot.slot_id and _leads_to_ssh(ingress)
    ]


def _leads_to_ssh(ingress: Ingress) -> bool:
    """Return whether an ingress rule is published and forwards port 22 or the whole address to the guest."""
    return ingress.state == "published" and (
        ingress.protocol is None or (ingress.protocol, ingress.port) == ("tcp", SSH_PORT)
    )


def _private(found: Allocation, slot: AllocatedSlot) -> list[Login]:
    return [
        Login(slot.node_id, NODE, each.address, each.port or SSH_PORT)
        for each in found.endpoints
        if (each.kind, each.via, each.address) == ("ssh", NODE, slot.private_ip)
    ]


def _through_gateway(found: Allocation, slot: AllocatedSlot) -> list[Login]:
    if found.ssh_gateway is None:
        return []
    name, gateway = f"slice-{found.slots.index(slot)}", found.ssh_gateway
    user = f"{found.id}@{gateway.address}"
    return [Login(slot.node_id, GATEWAY, name, SSH_PORT, user, gateway.host_key or "")]


def _alternatives(found: Allocation, logins: Sequence[Login]) -> tuple[str, ...]:
    if logins:
        return (f"omit --via, or use --via {logins[0].via}",)
    if found.network_mode == "public-nat":
        return (f"open an ingress: sliceplane allocations ingress add {found.id} tcp/{SSH_PORT}",)
    return (f"show the endpoints of the allocation: sliceplane allocations show {found.id}",)


def ssh_arguments(
    login: Login,
    *,
    identities: Sequence[Path] = (),
    certified: Path | None = None,
    options: Sequence[str] = (),
    command: Sequence[str] = (),
) -> tuple[str, ...]:
    """Return the command line of ssh(1). Guests accept keys for root only. `options` come first, because ssh(1) uses
    the first value of each option. `certified` is a private key with a certificate, which ssh(1) offers first.
    """
    given = (part for option in options for part in ("-o", option))
    keys = _keys(identities, certified)
    own = _OPTIONS if login.via != GATEWAY else ("-o", f"ProxyCommand={_proxy(login, keys)}", *_OPTIONS)
    # After `--` nothing is parsed as an option of ssh, even if the command begins with a dash.
    return ("ssh", *given, *own, *keys, "-p", str(login.port), "--", f"root@{login.address}", *command)


def _keys(identities: Sequence[Path], certified: Path | None) -> tuple[str, ...]:
    """Return the options for private keys. With a certificate, ssh(1) must not offer all keys of the user's agent
    before it: a server ends the connection after few attempts.
    """
    files = identities if certified is None else [certified, *identities]
    only = () if certified is None else ("-o", "IdentitiesOnly=yes")
    # ssh expands % in a file's name.
    return (*only, *(part for file in files for part in ("-i", str(file).replace("%", "%%"))))


def _proxy(login: Login, keys: Sequence[str]) -> str:
    """Return the ProxyCommand that connects ssh(1) to the slice through the gateway. `ssh -J` would offer the private
    keys in the options `keys` to the slice only, and not to the gateway.
    """
    user, _, address = login.gateway.rpartition("@")
    host, _, port = address.rpartition(":")
    to = ("-W", f"{login.address}:{login.port}", "-p", port, "-l", user, "--", host.strip("[]"))
    words = ("ssh", *_known_host(login.host_key), *keys, *to)
    # ssh expands % in the command, and runs it with `exec` of a shell.
    return shlex.join(words).replace("%", "%%")


def _known_host(host_key: str) -> tuple[str, ...]:
    """Return the options by which ssh(1) accepts exactly this host key. Without a key, the user's known hosts apply."""
    if not host_key:
        return ()
    kind, blob, *_ = host_key.split()
    known = f"KnownHostsCommand=/bin/echo * {kind} {blob}"  # not run by a shell
    return ("-o", known, "-o", "UserKnownHostsFile=/dev/null", "-o", "StrictHostKeyChecking=yes")


def entered(login: Login, namespaces: Mapping[str, Mapping[str, str]]) -> tuple[str, ...]:
    """Return the command prefix that enters the network namespace from which the slice's address is reachable; empty
    if its node is not one that `./dev up` runs on this machine. Raises `Refused`.
    """
    named = namespaces.get(login.node_id, {}).get(login.via)
    if named is None:
        return ()
    try:
        pid = int(Path(named).read_text())
    except (OSError, ValueError):
        raise Refused(
            f"lab node {login.node_id} is not running on this machine: the file {named} does not contain the id of a running process",
            "start the lab: ./dev up",
        ) from None
    if os.geteuid() != 0:
        raise Refused(
            f"the address {login.address} exists only in a network namespace of this machine, which only root can enter",
            "run this command as root",
        )
    return ("nsenter", f"--target={pid}", "--net", "--")
