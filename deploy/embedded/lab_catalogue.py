"""The catalogue of the lab: two small SKUs, and the image of a guest that boots from a kernel.

`publish_lab_catalogue` creates the entries that do not exist. It changes no existing entry: a version that an
administrator published, or a retirement, stays in effect when the control plane starts again.
"""

import asyncio
from typing import Final

import msgspec
from sqlalchemy.engine import URL

from control_plane.commands.catalogue import create_entry
from control_plane.database import engine_of
from control_plane.decisions.refusals import Conflict
from control_plane.handle import Handle
from control_plane.origin import Origin
from events.entries import EntryContent, EntryPublished, ImageContent, ReadinessCheck, SkuContent
from events.values import EntryKind, ImageName, SkuName, new_uuid

SMALL: Final = SkuContent(
    gpu_model=None,
    gpu_count=0,
    vcpus=1,
    memory_mib=96,
    disk_gib=0,
    fabric="none",
    network_modes=("private-nat", "public-nat"),
    rate_mbit=None,
    numa="any",
    placement="pack",
    price_per_hour="0.01",
    provisioning_seconds=120,
)
SKUS: Final[dict[SkuName, SkuContent]] = {
    SkuName("lab.small"): SMALL,
    SkuName("lab.medium"): msgspec.structs.replace(
        SMALL, memory_mib=192, rate_mbit=100, price_per_hour="0.02"
    ),
}
GUEST: Final = ImageContent(
    format="kernel",
    digest=None,
    size_bytes=0,
    architecture="x86_64",
    firmware=None,
    readiness=ReadinessCheck(port=22, banner="SSH-"),
    default_user="root",
    minimum_disk_gib=0,
)
IMAGES: Final[dict[ImageName, ImageContent]] = {ImageName("lab-guest"): GUEST}


def entries() -> list[tuple[EntryKind, str, EntryContent]]:
    """Return kind, name and content of every entry of the lab's catalogue."""
    return [
        *(("sku", name, sku) for name, sku in SKUS.items()),
        *(("image", name, image) for name, image in IMAGES.items()),
    ]


async def publish_with(handle: Handle) -> None:
    """Create those entries of the lab's catalogue that do not exist, each by a command that `handle` runs."""
    for kind, name, content in entries():
        origin = Origin(actor="operator", reason="lab catalogue", correlation_id=new_uuid())
        try:
            await handle(create_entry(kind, name, content, origin, _no_answer))
        except Conflict:
            continue  # the entry exists


def publish_lab_catalogue(database: URL) -> None:
    """Create the entries of the lab's catalogue that a database does not have yet. `database` is its URL, with the role
    of the application as its user.
    """
    asyncio.run(_publish(database))


async def _publish(database: URL) -> None:
    engine = engine_of(database.render_as_string(hide_password=False), 1)
    try:
        await publish_with(Handle(engine, _no_wake))
    finally:
        await engine.dispose()


def _no_answer(_fact: EntryPublished) -> str:
    return ""


async def _no_wake() -> None:
    """Do nothing instead of waking followers of the ledger: the control plane's programs are not running yet."""
