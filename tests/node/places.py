"""Hypothesis strategy for any host resources that node settings can assign to a virtual machine."""

from dataclasses import replace
from typing import Final

from hypothesis import strategies as st

from events.values import pci_address
from node_agent.host.host_resources import HostDevice, Place

_ADDRESSES: Final = st.from_regex(r"0000:[0-9a-f]{2}:[01][0-9a-f]\.[0-7]", fullmatch=True).map(pci_address)


def _named(devices: list[HostDevice]) -> tuple[HostDevice, ...]:
    """Return the devices in the order of node settings: GPUs, fabric devices, network card. Only the first network card
    is kept.
    """
    of = {use: [each for each in devices if each.use == use] for use in ("gpu", "fabric", "card")}
    return (*of["gpu"], *of["fabric"], *of["card"][:1])


PLACES: Final = st.builds(
    Place,
    devices=st.lists(
        st.builds(HostDevice, _ADDRESSES, st.sampled_from(["gpu", "fabric", "card"])),
        max_size=5,
        unique_by=lambda device: device.address,
    ).map(_named),
    pins=st.lists(st.integers(0, 255).map(str), max_size=4).map(tuple),
    nodeset=st.none() | st.integers(0, 7).map(str),
    hugepage_kib=st.sampled_from([None, 2048, 1048576]),
    queues=st.integers(1, 4),
    # A virtual function has its own queues, which its domain does not mention.
).map(lambda place: place if place.vf is None else replace(place, queues=1))
