"""XDP program on a network link, attached as monitoring and filtering tools attach one (bpf(2))."""

import ctypes
import os
import platform
import struct
from typing import Final

from pyroute2 import IPRoute

_BPF: Final = {"x86_64": 321, "aarch64": 280}
_PROG_LOAD: Final = 5
_XDP: Final = 6
_PASS: Final = struct.pack("=BBhiBBhi", 0xB7, 0, 0, 2, 0x95, 0, 0, 0)
"""BPF program `r0 = XDP_PASS; exit`, which lets every frame pass."""


def attach_xdp(link: str) -> None:
    """Attach an XDP program that passes every frame to the network link. Raises `OSError`."""
    code, license_ = ctypes.create_string_buffer(_PASS, len(_PASS)), ctypes.create_string_buffer(b"GPL")
    asked = struct.pack(
        "=IIQQ104x", _XDP, len(_PASS) // 8, ctypes.addressof(code), ctypes.addressof(license_)
    )
    libc = ctypes.CDLL(None, use_errno=True)
    program = libc.syscall(_BPF[platform.machine()], _PROG_LOAD, asked, len(asked))
    if program < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    try:
        with IPRoute() as netlink:
            (number,) = netlink.link_lookup(ifname=link)
            netlink.link("set", index=number, IFLA_XDP={"attrs": [["IFLA_XDP_FD", program]]})
    finally:
        os.close(program)
