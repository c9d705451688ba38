"""Policies of IPsec as the kernel lists them (linux/xfrm.h, struct xfrm_userpolicy_info)."""

import socket
import struct
from errno import EPROTONOSUPPORT
from functools import lru_cache
from typing import Final

from node_agent.drivers.netlink import attributes, listed
from node_agent.xfrm import PASSES, XfrmPolicy

NETLINK_XFRM: Final = 6
POLICY_GROUP: Final = 4
"""XFRMNLGRP_POLICY."""
_GET_POLICY: Final = 0x15
_QUESTION: Final = bytes(64)
"""struct xfrm_userpolicy_id, which a listing does not look at."""
_SELECTOR: Final = struct.Struct("=16s16sHHHHHBBBxxxiI")
"""Destination, source, ports and their masks, family, lengths of both networks, protocol, link, user."""
_POLICY: Final = struct.Struct("=56x64x32xIIBBBB4x")
"""Selector, limits, use; priority, index, direction, action, flags, share."""
_DIRECTIONS: Final = {0: "in", 1: "out", 2: "fwd"}
_BLOCKS: Final = 1
"""XFRM_POLICY_BLOCK."""
_TEMPLATES: Final = 5
"""XFRMA_TMPL: by which tunnels. A policy without any lets packets pass."""


def policies(deadline: float) -> tuple[XfrmPolicy, ...]:
    """Return the IPv4 policies of this network namespace, within `deadline` seconds; none if the kernel has no IPsec.

    Raises `OSError`, `Refused`.
    """
    try:
        messages = listed(NETLINK_XFRM, _GET_POLICY, _QUESTION, deadline)
    except OSError as error:
        if error.errno == EPROTONOSUPPORT:
            return ()
        raise
    read = (_policy(body) for _, body in messages)
    return tuple(each for each in read if each is not None)


# A survey reads the same ones again and again.
@lru_cache(maxsize=256)
def _policy(body: bytes) -> XfrmPolicy | None:
    destination, source, *_, family, to_length, from_length, _, _, _ = _SELECTOR.unpack_from(body)
    _, _, direction, action, _, _ = _POLICY.unpack_from(body)
    if family not in {socket.AF_INET, socket.AF_UNSPEC} or direction not in _DIRECTIONS:
        return None
    is_used = _TEMPLATES in attributes(body[_POLICY.size :])
    return XfrmPolicy(
        _DIRECTIONS[direction],
        _network(source, from_length),
        _network(destination, to_length),
        "drop" if action == _BLOCKS else "transform" if is_used else PASSES,
    )


def _network(packed: bytes, length: int) -> str:
    return f"{socket.inet_ntoa(packed[:4])}/{length}"
