"""Tables and chains of nftables as the kernel lists them (linux/netfilter/nf_tables.h).

The output of `nft -j` (1.0.6) is not sufficient: it prints the flags of a table from freed memory, and it omits the
devices of a chain.
"""

from collections.abc import Iterator
from functools import lru_cache
from typing import Final, NamedTuple

from node_agent.drivers.network.netlink import attributes, listed, values
from node_agent.packets.rules import Chain, Policy

NETLINK_NETFILTER: Final = 12
_GET_TABLE, _GET_CHAIN = 0xA01, 0xA04
"""Message types: NFNL_SUBSYS_NFTABLES << 8 | NFT_MSG_GETTABLE and NFT_MSG_GETCHAIN."""
_ANY_FAMILY: Final = bytes(4)
_FAMILIES: Final = {1: "inet", 2: "ip", 3: "arp", 5: "netdev", 7: "bridge", 10: "ip6"}
_FLAGS: Final = {1: "dormant", 2: "owner", 4: "persist"}
_TABLE_NAME, _TABLE_FLAGS = 1, 2
_CHAIN_TABLE, _CHAIN_NAME, _CHAIN_HOOK, _CHAIN_POLICY, _CHAIN_TYPE, _CHAIN_FLAGS = 1, 3, 4, 5, 7, 10
_HOOK_NUMBER, _HOOK_PRIORITY, _HOOK_DEVICE, _HOOK_DEVICES = 1, 2, 3, 4
_OFFLOADED: Final = 2
"""Flag NFT_CHAIN_HW_OFFLOAD of an nftables chain that is offloaded to hardware."""
_IP_HOOKS: Final = ("prerouting", "input", "forward", "output", "postrouting", "ingress")
_HOOKS: Final = {"netdev": ("ingress", "egress"), "arp": ("input", "output", "forward")}
_POLICIES: Final[dict[int, Policy]] = {0: "drop", 1: "accept"}


class FoundTable(NamedTuple):
    """A table of nftables with the names of its flags."""

    family: str
    name: str
    flags: tuple[str, ...]


class FoundChain(NamedTuple):
    """A chain of nftables with the name of its table."""

    table: str
    chain: Chain
    is_offloaded: bool


def tables(deadline: float) -> tuple[FoundTable, ...]:
    """Return all tables of this network namespace within `deadline` seconds. Raises `OSError`, `Refused`."""
    return tuple(_table(body) for body in _bodies(_GET_TABLE, deadline))


def chains(deadline: float) -> tuple[FoundChain, ...]:
    """Return all chains of this network namespace within `deadline` seconds. Raises `OSError`, `Refused`."""
    return tuple(_chain(body) for body in _bodies(_GET_CHAIN, deadline))


def _bodies(kind: int, deadline: float) -> Iterator[bytes]:
    return (body for _, body in listed(NETLINK_NETFILTER, kind, _ANY_FAMILY, deadline))


# Every survey reads the same tables and chains.
@lru_cache(maxsize=1024)
def _table(body: bytes) -> FoundTable:
    found = attributes(body[len(_ANY_FAMILY) :])
    flags = _number(found.get(_TABLE_FLAGS, b""))
    names = (_FLAGS.get(1 << bit, f"flag {1 << bit:#x}") for bit in range(32) if flags >> bit & 1)
    return FoundTable(_family(body), _text(found[_TABLE_NAME]), tuple(names))


@lru_cache(maxsize=1024)
def _chain(body: bytes) -> FoundChain:
    family, found = _family(body), attributes(body[len(_ANY_FAMILY) :])
    is_offloaded = bool(_number(found.get(_CHAIN_FLAGS, b"")) & _OFFLOADED)
    table, name = _text(found[_CHAIN_TABLE]), _text(found[_CHAIN_NAME])
    if _CHAIN_HOOK not in found:
        return FoundChain(table, Chain(family, name), is_offloaded)
    hook, hooks = attributes(found[_CHAIN_HOOK]), _HOOKS.get(family, _IP_HOOKS)
    number = _number(hook[_HOOK_NUMBER])
    chain = Chain(
        family,
        name,
        kind=_text(found[_CHAIN_TYPE]),
        hook=dict(enumerate(hooks)).get(number, f"hook {number}"),
        priority=_number(hook[_HOOK_PRIORITY], signed=True),
        policy=_POLICIES[_number(found[_CHAIN_POLICY])],
        device=", ".join(sorted(_devices(hook))) or None,
    )
    return FoundChain(table, chain, is_offloaded)


def _devices(hook: dict[int, bytes]) -> Iterator[str]:
    if _HOOK_DEVICE in hook:
        yield _text(hook[_HOOK_DEVICE])
    elif _HOOK_DEVICES in hook:
        yield from map(_text, values(hook[_HOOK_DEVICES]))


def _family(body: bytes) -> str:
    return _FAMILIES.get(body[0], f"family {body[0]}")


def _text(value: bytes) -> str:
    return value.rstrip(b"\0").decode(errors="replace")


def _number(value: bytes, *, signed: bool = False) -> int:
    return int.from_bytes(value, signed=signed)
