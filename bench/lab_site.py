"""A whole Sliceplane on real nodes for a bench, and slices on it."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from bench.apart import apart
from bench.servers import bench_folder
from deploy.embedded.layout import default_state
from deploy.embedded.site import Site, running_site
from deploy.embedded.ssh_key import ensure_key_pair
from events.values import Ipv4Address, MacAddress, SlotIndex
from node_agent.lab.lab import LabNode
from node_agent.slices import tap_of

Found = TypeVar("Found")
REPLICAS: Final = 2
PATIENCE: Final = 120.0
_LOOK_SECONDS: Final = 0.02


@dataclass(frozen=True)
class Slice:
    """An active allocation of one slot."""

    allocation: str
    node: LabNode
    index: SlotIndex
    mac: MacAddress
    address: Ipv4Address

    @property
    def tap(self) -> str:
        return tap_of(self.index)


@asynccontextmanager
async def lab_site() -> AsyncIterator[Site]:
    """The guest's image is the one that `./dev up` keeps."""
    with bench_folder() as folder:
        async with apart(running_site(folder, default_state() / "images", replicas=REPLICAS)) as site:
            yield site


async def allocated(site: Site) -> Slice:
    """Ask for a slice, and wait until it is active."""
    asked = {"sku": "lab.small", "ssh_authorized_keys": [ensure_key_pair(site.layout.ssh_key)]}
    made = await asyncio.to_thread(site.api.post, "/allocations", asked)
    await found(lambda: state(site, made["id"]), "active".__eq__)
    [slot] = made["slots"]
    name, _, index = slot["slot_id"].partition("/")
    mac, address = MacAddress(slot["mac_address"]), Ipv4Address(slot["private_ip"])
    return Slice(made["id"], site.nodes.lab.node(name), SlotIndex(int(index)), mac, address)


async def one_on_each_node(site: Site) -> list[Slice]:
    """An active allocation of one slot of each node; no others are left."""
    slices = dict[str, Slice]()
    more = list[Slice]()
    while len(slices) < len(site.nodes.lab.nodes):
        slice_ = await allocated(site)
        if slice_.node.name in slices:
            more.append(slice_)
        slices.setdefault(slice_.node.name, slice_)
    for slice_ in more:
        await forgotten(site, slice_)
    return [*slices.values()]


async def forgotten(site: Site, slice_: Slice) -> None:
    """Give it back, and wait for the proof."""
    await asyncio.to_thread(site.api.delete, f"/allocations/{slice_.allocation}")
    await found(lambda: state(site, slice_.allocation), "released".__eq__)


async def state(site: Site, allocation: str) -> Any:
    """The allocation's, as the API says."""
    site.stack.tend()
    return (await asyncio.to_thread(site.api.get, f"/allocations/{allocation}"))["state"]


async def found(look: Callable[[], Awaitable[Found]], is_it: Callable[[Found], object]) -> Found:
    """Look until it is there. Raises `TimeoutError`."""
    async with asyncio.timeout(PATIENCE):
        while True:
            if is_it(seen := await look()):
                return seen
            await asyncio.sleep(_LOOK_SECONDS)
