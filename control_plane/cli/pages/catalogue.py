"""Pages of the catalogue: SKUs, images and app profiles."""

from collections.abc import Iterable, Iterator

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from control_plane.cli.pages import words
from control_plane.cli.pages.details import Row, actions, page
from control_plane.cli.pages.tables import nothing, table
from control_plane.client.catalogue_answers import AppProfile, Image, Sku


def skus(items: Iterable[Sku]) -> RenderableType:
    rows = table("NAME", "VERSION", "STATE", "GPUS", "VCPUS", "MEMORY", "DISK", "FABRIC", "RATE", "PRICE/H")
    for item in items:
        size = str(item.vcpus), words.amount(item.memory_mib), _disk(item.disk_gib)
        rows.add_row(
            item.name,
            str(item.version),
            words.state(item.state),
            _gpus(item),
            *size,
            item.fabric or "-",
            words.rate(item.rate_mbit),
            item.price_per_hour or "-",
        )
    return rows if rows.row_count else nothing("no SKUs", "sliceplane skus publish NAME --file FILE")


def sku(item: Sku) -> Table:
    return page(_sku(item))


def _sku(item: Sku) -> Iterator[Row]:
    yield from _entry("SKU", item)
    size = f"{item.vcpus} vCPU, {words.amount(item.memory_mib)}, root disk {_disk(item.disk_gib)}"
    yield "size", f"{size}, GPUs {_gpus(item)}"
    yield "fabric", item.fabric or "-"
    yield "network", f"{', '.join(item.network_modes)}, rate limit {words.rate(item.rate_mbit)}"
    yield "placement", f"{item.placement or '-'}, NUMA {item.numa or '-'}"
    yield "price", f"{item.price_per_hour or '-'} per hour"
    yield "bring-up", f"within {item.provisioning_seconds} s" if item.provisioning_seconds else "-"
    yield (
        "lease",
        f"at most {words.span(item.max_lease_seconds)}" if item.max_lease_seconds else "not limited",
    )
    yield from actions(item.allowed_actions)


def images(items: Iterable[Image]) -> RenderableType:
    rows = table("NAME", "VERSION", "STATE", "FORMAT", "SIZE", "FIRMWARE", "USER", "MINIMUM DISK")
    for item in items:
        rows.add_row(
            item.name,
            str(item.version),
            words.state(item.state),
            item.format,
            _bytes(item.size_bytes),
            item.firmware or "-",
            item.default_user or "-",
            _disk(item.minimum_disk_gib),
        )
    return rows if rows.row_count else nothing("no images", "sliceplane images publish NAME --file FILE")


def image(item: Image) -> Table:
    return page(_image(item))


def _image(item: Image) -> Iterator[Row]:
    yield from _entry("image", item)
    yield "format", f"{item.format}, {item.architecture or '-'}, firmware {item.firmware or '-'}"
    if item.digest:
        yield "digest", f"{item.digest}, {_bytes(item.size_bytes)}"
    if item.readiness:
        line = (
            f"a line that begins with {item.readiness.banner!r}"
            if item.readiness.banner
            else "accepts connections"
        )
        yield "readiness", f"port {item.readiness.port}: {line}"
    yield "user", item.default_user or "-"
    yield "minimum disk", _disk(item.minimum_disk_gib)
    yield from actions(item.allowed_actions)


def app_profiles(items: Iterable[AppProfile]) -> RenderableType:
    rows = table("NAME", "VERSION", "STATE", "FABRICS", "DESCRIPTION")
    for item in items:
        state = words.state(item.state)
        rows.add_row(item.name, str(item.version), state, ", ".join(item.fabrics), item.description or "-")
    advice = "sliceplane app-profiles publish NAME --fabric FABRIC"
    return rows if rows.row_count else nothing("no app profiles", advice)


def app_profile(item: AppProfile) -> Table:
    return page(_app_profile(item))


def _app_profile(item: AppProfile) -> Iterator[Row]:
    yield from _entry("app profile", item)
    yield "description", item.description or "-"
    yield "fabrics", ", ".join(item.fabrics)
    yield from actions(item.allowed_actions)


def _entry(word: str, item: Sku | Image | AppProfile) -> Iterator[Row]:
    yield word, Text(item.name, "bold")
    yield "version", str(item.version)
    yield "state", words.state(item.state)
    if item.reason:
        yield "reason", item.reason


def _gpus(item: Sku) -> str:
    return f"{item.gpu_count} x {item.gpu_model}" if item.gpu_count else "-"


def _disk(gib: int) -> str:
    return f"{gib} GiB" if gib else "-"


def _bytes(size: int) -> str:
    return f"{size / 2**20:.0f} MiB" if size else "-"
