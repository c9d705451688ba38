"""`sliceplane skus`, `images` and `app-profiles`: the catalogue. The three groups have the same commands."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Final, TypeVar

import msgspec
import typer
from rich.console import RenderableType

from control_plane.cli.failures import WrongUsage
from control_plane.cli.options import Output, Why
from control_plane.cli.pages import catalogue as pages
from control_plane.cli.request import seconds
from control_plane.cli.screen import Format
from control_plane.cli.session import session
from control_plane.cli.times import At
from control_plane.client import catalogue
from control_plane.client.catalogue import Entries
from control_plane.client.errors import UnknownName

T = TypeVar("T")
Page = Callable[[T], RenderableType]
sku_commands = typer.Typer(no_args_is_help=True)
image_commands = typer.Typer(no_args_is_help=True)
app_profile_commands = typer.Typer(no_args_is_help=True)
Name = Annotated[str, typer.Argument(metavar="NAME", help="Name of the entry.")]
Version = Annotated[int | None, typer.Option(min=1, help="Version to show.", show_default="the newest")]
State = Annotated[
    str | None,
    typer.Option(metavar="STATE", help="Only entries in this state: offered or retired.", show_default=False),
]
New = Annotated[
    bool,
    typer.Option(
        "--new", help="Refuse the name of an existing entry, instead of publishing a further version."
    ),
]
File = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="JSON file with the content of the version; - reads standard input. Options replace its fields.",
        show_default=False,
        allow_dash=True,
    ),
]
_READ_ONLY: Final = ("name", "version", "state", "reason", "allowed_actions")
"""Fields that `show -o json` prints in addition to the content. In a file given with `--file` they are ignored."""


def _add(
    group: typer.Typer,
    word: str,
    entries: Entries[T],
    rows: Callable[[list[T]], RenderableType],
    one: Page[T],
) -> None:
    """Add the commands `list`, `show`, `versions` and `retire` to the command group of one kind of entries."""

    @group.command("list", help=f"List every {word} with its newest version.")
    def list_entries(
        context: typer.Context, *, state: State = None, at: At = None, output: Output = Format.TABLE
    ) -> None:
        with session(context, output) as current:
            current.show_list(entries.all(state=state, at=at), rows)

    @group.command(help=f"Show one {word}: its newest version, or the given one.")
    def show(
        context: typer.Context,
        *,
        name: Name,
        version: Version = None,
        at: At = None,
        output: Output = Format.TABLE,
    ) -> None:
        with session(context, output) as current:
            current.screen.one(current.send(entries.one(name, version=version, at=at)), one)

    @group.command(help=f"List the versions of one {word}, oldest first.")
    def versions(context: typer.Context, *, name: Name, output: Output = Format.TABLE) -> None:
        with session(context, output) as current:
            current.show_list(entries.versions(name), rows)

    @group.command(
        help=f"Retire one {word}: no new allocation can use it. Existing allocations are not affected."
    )
    def retire(context: typer.Context, *, name: Name, reason: Why, output: Output = Format.TABLE) -> None:
        with session(context, output) as current:
            current.screen.one(current.send(entries.retire(name, reason)), one)


_add(sku_commands, "SKU", catalogue.SKUS, pages.skus, pages.sku)
_add(image_commands, "image", catalogue.IMAGES, pages.images, pages.image)
_add(app_profile_commands, "app profile", catalogue.APP_PROFILES, pages.app_profiles, pages.app_profile)


@sku_commands.command("publish")
def publish_sku(
    context: typer.Context,
    *,
    name: Name,
    file: File = None,
    new: New = False,
    vcpus: Annotated[int | None, typer.Option(help="Virtual processors.", show_default=False)] = None,
    memory_mib: Annotated[int | None, typer.Option(help="Memory in MiB.", show_default=False)] = None,
    gpu_model: Annotated[str | None, typer.Option(help="Model of the GPUs.", show_default="none")] = None,
    gpu_count: Annotated[int | None, typer.Option(help="Number of GPUs.", show_default="0")] = None,
    disk_gib: Annotated[int | None, typer.Option(help="Root disk in GiB.", show_default="no disk")] = None,
    fabric: Annotated[
        str | None,
        typer.Option(help="Fabric that a slot must offer: ib, roce, ethernet or none.", show_default="none"),
    ] = None,
    network_mode: Annotated[
        list[str] | None,
        typer.Option(help="Network mode that requests may choose; repeatable.", show_default="all modes"),
    ] = None,
    rate_mbit: Annotated[
        int | None, typer.Option(help="Rate limit in each direction, in Mbit/s.", show_default="no limit")
    ] = None,
    numa: Annotated[
        str | None, typer.Option(help="NUMA nodes of a slice: any or single.", show_default="any")
    ] = None,
    placement: Annotated[
        str | None, typer.Option(help="How slices are placed on nodes: pack or spread.", show_default="pack")
    ] = None,
    price_per_hour: Annotated[
        str | None, typer.Option(help="Price of one slot per hour, such as 2.50.", show_default="0")
    ] = None,
    provisioning: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="Time in which a slice must be ready.", show_default="2m"),
    ] = None,
    max_lease: Annotated[
        str | None,
        typer.Option(
            metavar="TIME", help="Longest lease, from a request or a renewal on.", show_default="no limit"
        ),
    ] = None,
    output: Output = Format.TABLE,
) -> None:
    """Publish a version of a SKU, which is created if it does not exist. A field that is not given gets its default,
    not the value of the previous version.
    """
    given = {
        "vcpus": vcpus,
        "memory_mib": memory_mib,
        "gpu_model": gpu_model,
        "gpu_count": gpu_count,
        "disk_gib": disk_gib,
        "fabric": fabric,
        "network_modes": network_mode or None,
        "rate_mbit": rate_mbit,
        "numa": numa,
        "placement": placement,
        "price_per_hour": price_per_hour,
        "provisioning_seconds": None if provisioning is None else seconds(provisioning, "--provisioning"),
        "max_lease_seconds": None if max_lease is None else seconds(max_lease, "--max-lease"),
    }
    _publish(context, output, catalogue.SKUS, pages.sku, name=name, content=_content(file, given), new=new)


@image_commands.command("publish")
def publish_image(
    context: typer.Context,
    *,
    name: Name,
    file: File = None,
    new: New = False,
    format_: Annotated[
        str | None,
        typer.Option("--format", help="Format of the image: kernel, qcow2 or raw.", show_default=False),
    ] = None,
    digest: Annotated[
        str | None, typer.Option(help="Digest of the disk image, sha256:HEX.", show_default=False)
    ] = None,
    size_bytes: Annotated[
        int | None, typer.Option(help="Size of the disk image in bytes.", show_default=False)
    ] = None,
    firmware: Annotated[
        str | None, typer.Option(help="Firmware that boots the disk image: uefi or bios.", show_default=False)
    ] = None,
    readiness_port: Annotated[
        int | None, typer.Option(help="TCP port of the readiness check.", show_default="22")
    ] = None,
    readiness_banner: Annotated[
        str | None,
        typer.Option(
            help='Beginning of the line that the port of the readiness check sends; "" if an open port is enough.',
            show_default="SSH-",
        ),
    ] = None,
    default_user: Annotated[
        str | None, typer.Option(help="User that SSH keys log in as.", show_default="root")
    ] = None,
    minimum_disk_gib: Annotated[
        int | None,
        typer.Option(
            help="Size of the smallest root disk that the image fits on, in GiB.",
            show_default="no disk for a kernel image, else as the image file shows",
        ),
    ] = None,
    output: Output = Format.TABLE,
) -> None:
    """Publish a version of an image, which is created if it does not exist. A field that is not given gets its
    default, not the value of the previous version.
    """
    check = {"port": readiness_port, "banner": readiness_banner}
    given = {
        "format": format_,
        "digest": digest,
        "size_bytes": size_bytes,
        "firmware": firmware,
        "readiness": {field: value for field, value in check.items() if value is not None} or None,
        "default_user": default_user,
        "minimum_disk_gib": minimum_disk_gib,
    }
    _publish(
        context, output, catalogue.IMAGES, pages.image, name=name, content=_content(file, given), new=new
    )


@app_profile_commands.command("publish")
def publish_app_profile(
    context: typer.Context,
    *,
    name: Name,
    file: File = None,
    new: New = False,
    description: Annotated[str | None, typer.Option(help="What the profile is for.", show_default="")] = None,
    fabric: Annotated[
        list[str] | None,
        typer.Option(
            help="Fabric that the workload accepts (ib, roce, ethernet, none), the preferred first; repeatable.",
            show_default=False,
        ),
    ] = None,
    output: Output = Format.TABLE,
) -> None:
    """Publish a version of an app profile, which is created if it does not exist. A field that is not given gets its
    default, not the value of the previous version.
    """
    given = {"description": description, "fabrics": fabric or None}
    _publish(
        context,
        output,
        catalogue.APP_PROFILES,
        pages.app_profile,
        name=name,
        content=_content(file, given),
        new=new,
    )


def _publish(
    context: typer.Context,
    output: Format,
    entries: Entries[T],
    one: Page[T],
    *,
    name: str,
    content: dict[str, Any],
    new: bool,
) -> None:
    """Publish a further version of an entry, or create the entry if it does not exist. An entry that is required to be
    `new` is only created.
    """
    with session(context, output) as current:
        if new:
            current.screen.one(current.send(entries.create(name, content)), one)
            return
        try:
            reply = current.send(entries.publish(name, content))
        except UnknownName:
            reply = current.send(entries.create(name, content))
        current.screen.one(reply, one)


def _content(file: Path | None, given: dict[str, Any]) -> dict[str, Any]:
    """Return the content of a version: the fields of the file, replaced by those options that are given. Raises
    `WrongUsage` if the file cannot be used.
    """
    content = {} if file is None else _fields_of(file)
    for field in _READ_ONLY:
        content.pop(field, None)
    return content | {field: value for field, value in given.items() if value is not None}


def _fields_of(file: Path) -> dict[str, Any]:
    try:
        raw = typer.get_binary_stream("stdin").read() if str(file) == "-" else file.read_bytes()
        return msgspec.json.decode(raw, type=dict[str, Any])
    except OSError as error:
        raise WrongUsage(f"--file: cannot read {file}: {error.strerror}") from error
    except msgspec.DecodeError as error:
        raise WrongUsage(f"--file: {file} is not a JSON object: {error}") from error
