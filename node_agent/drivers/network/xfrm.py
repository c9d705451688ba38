"""IPsec policies as the kernel lists them (linux/xfrm.h, struct xfrm_userpolicy_info)."""

import socket
import struct
from errno import EPROTONOSUPPORT
from functools import lru_cache
from typing import Final

from node_agent.drivers.network.netlink import attributes, listed
from node_agent.packets.xfrm import PASSES, XfrmPolicy

NETLINK_XFRM: Final = 6
POLICY_GROUP: Final = 4
"""Netlink multicast group XFRMNLGRP_POLICY, in which the kernel reports changes of IPsec policies."""
_GET_POLICY: Final = 0x15
_REQUEST: Final = bytes(64)
"""Body of a request for all IPsec policies: an empty struct xfrm_userpolicy_id, which the kernel ignores."""
_SELECTOR: Final = struct.Struct("=16s16sHHHHHBBBxxxiI")
"""Layout of an IPsec policy's selector (struct xfrm_selector): destination, source, ports and their masks, family,
lengths of both networks, protocol, link, user."""
_POLICY: Final = struct.Struct("=56x64x32xIIBBBB4x")
"""Layout of an IPsec policy (struct xfrm_userpolicy_info): selector, limits and use (skipped), priority, index,
direction, action, flags, share."""
_DIRECTIONS: Final = {0: "in", 1: "out", 2: "fwd"}
_BLOCKS: Final = 1
"""Action XFRM_POLICY_BLOCK of an IPsec policy: the policy drops packets."""
_TEMPLATES: Final = 5
"""Attribute type XFRMA_TMPL: the transformations of an IPsec policy. A policy without transformations lets packets
pass."""


def policies(deadline: float) -> tuple[XfrmPolicy, ...]:
    """Return the IPv4 IPsec policies of this network namespace within `deadline` seconds; none without IPsec support.

    Raises `OSError`, `Refused`.
    """
    try:
        messages = listed(NETLINK_XFRM, _GET_POLICY, _REQUEST, deadline)
    except OSError as error:
        if error.errno == EPROTONOSUPPORT:
            return ()
        raise
    read = (_policy(body) for _, body in messages)
    return tuple(each for each in read if each is not None)


# Every survey reads the same policies.
@lru_cache(maxsize=256)
def _policy(body: bytes) -> XfrmPolicy | None:
    destination, source, *_, family, to_length, from_length, _, _, _ = _SELECTOR.unpack_from(body)
    _, _, direction, action, _, _ = _POLICY.unpack_from(body)
    if family not in {socket.AF_INET, socket.AF_UNSPEC} or direction not in _DIRECTIONS:
        return None
    has_templates = _TEMPLATES in attributes(body[_POLICY.size :])
    return XfrmPolicy(
        _DIRECTIONS[direction],
        _network(source, from_length),
        _network(destination, to_length),
        "drop" if action == _BLOCKS else "transform" if has_templates else PASSES,
    )


def _network(packed: bytes, length: int) -> str:
    return f"{socket.inet_ntoa(packed[:4])}/{length}"
