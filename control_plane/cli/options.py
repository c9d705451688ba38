"""Options that several commands share."""

from typing import Annotated

import typer

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for programs: no colour, no progress.")]
After = Annotated[
    int | None, typer.Option(min=0, help="Only events behind this position.", show_default=False)
]
AllocationId = Annotated[str, typer.Argument(metavar="ALLOCATION", help="Id of an allocation, alc-...")]
NodeId = Annotated[str, typer.Argument(metavar="NODE", help="Id of a node, such as lab-a.")]
