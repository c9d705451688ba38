"""A complete Sliceplane on real nodes for a benchmark, and slices on it."""

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from bench.harness.own_thread import in_own_thread
from bench.harness.servers import NO_REQUEST_LIMITS, bench_folder
from deploy.embedded.layout import default_state
from deploy.embedded.site import LabSite, running_site
from deploy.embedded.ssh_key import ensure_key_pair
from events.values import Ipv4Address, MacAddress, SlotIndex
from node_agent.host.slices import tap_of
from node_agent.lab.lab import LabNode

T = TypeVar("T")
REPLICAS: Final = 2
TIMEOUT_SECONDS: Final = 120.0
_POLL_SECONDS: Final = 0.02


@dataclass(frozen=True)
class ActiveSlice:
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
async def lab_site() -> AsyncIterator[LabSite]:
    """Run a complete Sliceplane on lab nodes, with the guest image that `./dev up` keeps."""
    os.environ.update(NO_REQUEST_LIMITS)  # the programs of the site inherit them
    with bench_folder() as folder:
        async with in_own_thread(running_site(folder, default_state() / "images", replicas=REPLICAS)) as site:
            yield site


async def create_slice(site: LabSite) -> ActiveSlice:
    """Request an allocation of one slot, and wait until it is active."""
    request = {"sku": "lab.small", "ssh_authorized_keys": [ensure_key_pair(site.layout.ssh_key)]}
    made = await asyncio.to_thread(site.api.post, "/allocations", request)
    await poll_until(lambda: allocation_state(site, made["id"]), "active".__eq__)
    [slot] = made["slots"]
    name, _, index = slot["slot_id"].partition("/")
    mac, address = MacAddress(slot["mac_address"]), Ipv4Address(slot["private_ip"])
    return ActiveSlice(made["id"], site.nodes.lab.node(name), SlotIndex(int(index)), mac, address)


async def slice_on_each_node(site: LabSite) -> list[ActiveSlice]:
    """Create allocations of one slot until each node has an allocation, and release the surplus ones."""
    slices = dict[str, ActiveSlice]()
    more = list[ActiveSlice]()
    while len(slices) < len(site.nodes.lab.nodes):
        slice_ = await create_slice(site)
        if slice_.node.name in slices:
            more.append(slice_)
        slices.setdefault(slice_.node.name, slice_)
    for slice_ in more:
        await release_slice(site, slice_)
    return [*slices.values()]


async def release_slice(site: LabSite, slice_: ActiveSlice) -> None:
    """Release the allocation, and wait for the proof that nothing of it is left."""
    await asyncio.to_thread(site.api.delete, f"/allocations/{slice_.allocation}")
    await poll_until(lambda: allocation_state(site, slice_.allocation), "released".__eq__)


async def allocation_state(site: LabSite, allocation: str) -> Any:
    """Restart programs of the site that exited, and return the state of the allocation from the API."""
    site.stack.supervise()
    return (await asyncio.to_thread(site.api.get, f"/allocations/{allocation}"))["state"]


async def poll_until(read: Callable[[], Awaitable[T]], is_expected: Callable[[T], object]) -> T:
    """Call `read` until its result is the expected one, and return it. Raises `TimeoutError`."""
    async with asyncio.timeout(TIMEOUT_SECONDS):
        while True:
            if is_expected(result := await read()):
                return result
            await asyncio.sleep(_POLL_SECONDS)
