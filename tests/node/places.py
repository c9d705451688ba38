"""Any place that settings, or a future aspect of the network, could give a machine."""

from typing import Final

from hypothesis import strategies as st

from events.values import pci_address
from node_agent.places import HostDevice, Place

PLACES: Final = st.builds(
    Place,
    devices=st.lists(
        st.builds(
            HostDevice,
            st.from_regex(r"0000:[0-9a-f]{2}:[01][0-9a-f]\.[0-7]", fullmatch=True).map(pci_address),
            st.sampled_from(["gpu", "fabric"]),
        ),
        max_size=5,
        unique_by=lambda device: device.address,
        # As settings name them: the GPUs first.
    ).map(lambda devices: tuple(sorted(devices, key=lambda device: device.use, reverse=True))),
    vf=st.none() | st.just(pci_address("0000:3b:00.2")),
    pins=st.lists(st.integers(0, 255).map(str), max_size=4).map(tuple),
    nodeset=st.none() | st.integers(0, 7).map(str),
    hugepage_kib=st.sampled_from([None, 2048, 1048576]),
    queues=st.integers(1, 4),
)
