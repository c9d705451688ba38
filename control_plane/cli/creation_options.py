"""Options of `sliceplane allocations create`: what is requested, and what the command does with it."""

from pathlib import Path
from typing import Annotated

import typer

Sku = Annotated[str, typer.Option(help="Slice size; `sliceplane skus list` lists them.")]
OrSku = Annotated[
    list[str] | None,
    typer.Option(
        help="SKU to use if no node is suitable for the SKUs before it; repeatable.", show_default=False
    ),
]
Image = Annotated[str | None, typer.Option(help="Image to boot.", show_default="lab-guest")]
AppProfile = Annotated[
    str | None,
    typer.Option(
        help="App profile of the workload; `sliceplane app-profiles list` lists them.",
        show_default="none",
    ),
]
NetworkMode = Annotated[str, typer.Option(help="Network mode, such as private-nat or public-nat.")]
SshKeys = Annotated[
    list[Path] | None,
    typer.Option(
        help="Public key file that may log in; repeatable.",
        show_default="the keys in ~/.ssh; a key is created if there is none",
    ),
]
UserData = Annotated[
    Path | None,
    typer.Option(help="File with user-data for cloud-init: a cloud-config or a script.", show_default=False),
]
GatewayAccess = Annotated[
    bool,
    typer.Option(
        "--gateway-access",
        help="Let the SSH gateway log in, for the terminal in the browser and for SSH certificates.",
    ),
]
LeaseTime = Annotated[
    str, typer.Option(metavar="TIME", help="Length of the lease, such as 90s, 30m, 2h or 7d.")
]
SlotCount = Annotated[int, typer.Option(min=1, help="Number of slots, all on one node.")]
OnNode = Annotated[
    str | None,
    typer.Option(
        help="Place the allocation on this node, even if the node is simulated.",
        show_default="placement chooses",
    ),
]
Open = Annotated[
    list[str] | None,
    typer.Option(
        "--open",
        metavar="RULE",
        help="Ingress rule, with --network-mode public-nat: PROTOCOL/PORT, such as tcp/22 or udp/53;"
        " PROTOCOL/PUBLIC_PORT:PORT, such as tcp/20022:22; or the word address for a whole public address. Repeatable.",
        show_default=False,
    ),
]
LabelOptions = Annotated[
    list[str] | None, typer.Option(metavar="NAME=VALUE", help="Label; repeatable.", show_default=False)
]
ApartFrom = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME=VALUE",
        help="Use no node on which an allocation of the project with this label has a slot; repeatable.",
        show_default=False,
    ),
]
MaxPricePerHour = Annotated[
    str | None,
    typer.Option(
        help="Use no SKU with which the whole allocation costs more per hour, such as 2.50.",
        show_default="any price",
    ),
]
WaitForCapacity = Annotated[
    str | None,
    typer.Option(
        metavar="TIME",
        help="If the allocation cannot be placed now, let the request wait for capacity for this time, such as 30m;"
        " 'default': the time that the operator has set.",
        show_default="the request is refused",
    ),
]
Priority = Annotated[
    int | None,
    typer.Option(
        help="With --wait-for-capacity: priority among the waiting allocations; the highest is placed first.",
        show_default="0",
    ),
]
ReplaceOnFailure = Annotated[
    bool,
    typer.Option(
        "--replace-on-failure/--no-replace-on-failure",
        help="If a slice cannot be brought up due to a node fault, place the allocation on another node, once.",
    ),
]
Explain = Annotated[
    bool,
    typer.Option(
        "--explain",
        help="Create nothing: show where the allocation would be placed, and why each node is suitable or not.",
    ),
]
WaitUntilActive = Annotated[
    bool, typer.Option("--wait/--no-wait", help="Wait until the allocation is active.")
]
