"""`sliceplane audit`: proof that the history was not changed (docs/audit.md).

`verify` works without a connection: it needs an export, the public keys of the sealer, and heads that the auditor kept.
This module is the only one of the command line that shares code with the control plane: the tree, the heads and the
leaves must be computed as the ledger defines them.
"""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import msgspec
import typer

from control_plane.cli.failures import Different, Failure, WrongUsage
from control_plane.cli.files import write_new_file
from control_plane.cli.options import UnnamedOutput
from control_plane.cli.pages import audit as pages
from control_plane.cli.screen import UnnamedFormat
from control_plane.cli.session import Session, refuse_as_curl, screen, session
from control_plane.client import calls
from control_plane.client.audit_answers import Head
from control_plane.client.errors import SliceplaneError, is_temporary
from control_plane.client.exchange import Reply

if TYPE_CHECKING:
    from joserfc.jwk import OKPKey

    from control_plane.audit.verify import Verdict

commands = typer.Typer(no_args_is_help=True)
_KEY: Final = "File with a public key of the sealer (PEM); repeatable, for keys that were replaced."
Keys = Annotated[list[Path], typer.Option("--key", metavar="FILE", help=_KEY)]
Page = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="File of kept heads. The new head must continue the last head in it, and is added to it. Needs --key.",
        show_default=False,
    ),
]


@commands.command()
def head(
    context: typer.Context,
    *,
    keep: Page = None,
    key: Annotated[
        list[Path] | None, typer.Option("--key", metavar="FILE", help=_KEY, show_default=False)
    ] = None,
    output: UnnamedOutput = UnnamedFormat.TABLE,
) -> None:
    """Show the newest signed head of the ledger; with --keep, check that it continues the kept heads, and keep it.

    Exit code 1 if the new head contradicts the kept ones.
    """
    if keep is not None and not key:
        raise typer.BadParameter("--keep needs the public key of the sealer: --key FILE")
    with session(context, output) as current:
        reply = next(iter(current.listing(calls.heads(), 1)), None)
        if reply is None:
            raise Failure("the ledger has no head yet", "start the sealer: sliceplane-server sealer")
        if keep is not None:
            _keep(current, reply, keep, _read_keys(key or []))
        current.screen.one(reply, pages.head)


def _keep(current: Session, reply: Reply[Head], path: Path, keys: "dict[str, OKPKey]") -> None:
    from control_plane.audit.checks import NotProved, check_succession
    from control_plane.audit.heads import BadHead, head_of, verify_head

    lines = _lines(path) if path.exists() else []
    newest = reply.value
    try:
        verify_head(newest.signed, keys)
        if lines:
            try:
                kept = head_of(lines[-1]).head
            except BadHead as bad:
                raise WrongUsage(
                    f"the last line of {path} is not a head: {bad}",
                    "remove this line, which may be incomplete",
                ) from None
            proof: Sequence[str] = ()
            if 0 < kept.size < newest.size:
                proof = current.send(calls.consistency(kept.size, newest.size)).value.hashes
            check_succession(lines[-1], newest.signed, keys, proof)
    except (BadHead, NotProved) as error:
        raise Different(
            str(error),
            "check --key; if it is right, keep both heads as evidence, and export the ledger: sliceplane audit export FILE",
        ) from None
    if newest.signed not in lines:
        content = path.read_bytes() if path.exists() else b""
        begin = "\n" if content and not content.endswith(b"\n") else ""
        with path.open("a") as file:
            file.write(f"{begin}{newest.signed}\n")


@commands.command()
def watch(
    context: typer.Context,
    *,
    keep: Annotated[
        Path,
        typer.Option(
            metavar="FILE",
            help="File of kept heads. Each new head must continue the last one in it, and is added.",
        ),
    ],
    key: Keys,
    interval: Annotated[
        float, typer.Option(min=0.1, metavar="SECONDS", help="Time between two requests for the newest head.")
    ] = 10.0,
) -> None:
    """Keep the newest head every few seconds, until interrupted: the same as `audit head --keep`, repeated.

    If the control plane is unavailable, the command retries. Exit code 1 with the first head that contradicts the kept
    ones.
    """
    refuse_as_curl(context, "audit watch")
    with session(context, UnnamedFormat.TABLE) as current:
        keys, newest, is_lost = _read_keys(key), 0, False
        while True:
            try:
                reply = next(iter(current.listing(calls.heads(), 1)), None)
                if reply is not None:
                    _keep(current, reply, keep, keys)
            except SliceplaneError as error:
                if not is_temporary(error):
                    raise
                if not is_lost:
                    current.screen.note(f"connection lost, retrying: {error.what}")
                is_lost = True
            else:
                is_lost = False
                if reply is not None and reply.value.number != newest:
                    newest = reply.value.number
                    current.screen.rows(pages.kept(reply.value))
            time.sleep(interval)


@commands.command()
def sinks(context: typer.Context, *, output: UnnamedOutput = UnnamedFormat.TABLE) -> None:
    """Show which heads the sinks of the sealer have stored. Exit code 1 if a sink stores none."""
    with session(context, output) as current:
        reply = current.send(calls.sinks())
        current.screen.one(reply, pages.sinks)
        if failing := [each.name for each in reply.value.sinks if each.error is not None]:
            raise Different(
                f"{', '.join(failing)} stores no heads",
                "correct the sink or its settings; the sealer sends the missing heads as soon as it stores them",
            )


@commands.command()
def prove(
    context: typer.Context,
    *,
    position: Annotated[int, typer.Argument(min=1, metavar="POSITION", help="Position of an event.")],
    size: Annotated[
        int | None,
        typer.Option(
            min=1, help="Number of positions of a head. Default: the newest head.", show_default=False
        ),
    ] = None,
    key: Annotated[
        list[Path] | None,
        typer.Option("--key", metavar="FILE", help=f"{_KEY} Then the proof is checked.", show_default=False),
    ] = None,
    output: UnnamedOutput = UnnamedFormat.TABLE,
) -> None:
    """Show the proof that a signed head includes a position; with --key, check it."""
    with session(context, output) as current:
        reply = current.send(calls.inclusion(position, size))
        if key:
            from control_plane.audit.checks import NotProved, check_inclusion
            from control_plane.audit.heads import BadHead

            found = reply.value
            if found.head is None:
                raise WrongUsage(
                    f"no head has {found.size} positions", "choose the size of a head, or leave --size out"
                )
            try:
                check_inclusion(found.head.signed, _read_keys(key), position, found.leaf, found.hashes)
            except (BadHead, NotProved) as error:
                raise Different(str(error), "keep the response as evidence") from None
            current.asides[
                f"head {found.head.number} includes position {position}; signature and proof are valid"
            ] = None
        current.screen.one(reply, pages.proof)


@commands.command()
def export(
    context: typer.Context,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="File to write; it must not exist.")],
) -> None:
    """Write the whole ledger into a file, for `audit verify`."""
    refuse_as_curl(context, "audit export")
    with session(context, UnnamedFormat.TABLE) as current:
        write_new_file(file, current.client.download("/v1/audit/export"))
        current.screen.note(f"verify it: sliceplane audit verify {file} --key KEY --head HEADS")


@commands.command()
def verify(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="File that `audit export` wrote.")],
    *,
    key: Keys,
    head: Annotated[
        list[Path] | None,
        typer.Option(
            "--head",
            metavar="FILE",
            help="File with heads that you kept, one on each line; repeatable.",
            show_default=False,
        ),
    ] = None,
    output: UnnamedOutput = UnnamedFormat.TABLE,
) -> None:
    """Verify an exported ledger without a connection: signatures, tree, every event, and the tables beside them.

    Exit code 0 if the history is as it was sealed; otherwise 1, with each difference by position and kind.
    """
    with screen(output) as made:
        from control_plane.audit.verify import verify_export

        kept = [line for path in head or [] for line in _lines(path)]
        try:
            found = verify_export(file, _read_keys(key), kept)
        except OSError as error:
            raise WrongUsage(f"{file} cannot be read: {error.strerror}", "correct the path") from error
        if made.machine:
            made.document(_document(found))
        else:
            made.page(pages.verdict(found))
        if found.head is None and not any(each.kind == "export" for each in found.differences):
            raise Different(
                "nothing is proved: no head of the export is signed with one of the given keys",
                "check the files of --key; if they are right, keep the export and the heads as evidence",
            )
        if found.differences:
            count = (
                "1 difference" if len(found.differences) == 1 else f"{len(found.differences):,} differences"
            )
            raise Different(
                f"the history is not as it was sealed: {count}",
                "keep the export and the heads as evidence; docs/audit.md describes each kind of difference",
            )


def _document(found: "Verdict") -> bytes:
    return msgspec.json.encode(
        {
            "verdict": "different" if found.differences else "as_sealed",
            "rows": found.rows,
            "sealed": found.sealed,
            "exported_at": found.exported_at,
            "head": None if found.head is None else found.head.head,
            "kept_heads": found.kept,
            "notes": found.notes,
            "differences": found.differences,
        }
    )


def _read_keys(paths: Sequence[Path]) -> "dict[str, OKPKey]":
    """Read public keys. Raises `WrongUsage`."""
    from control_plane.audit.heads import BadKey, trusted_keys

    try:
        return trusted_keys("\n".join(_lines(path)) + "\n" for path in paths)
    except BadKey as bad:
        raise WrongUsage(
            f"a file of --key is not a public key: {bad}", "use a file with an Ed25519 public key (PEM)"
        ) from None


def _lines(path: Path) -> list[str]:
    """Return the lines of a file that are not empty. Raises `WrongUsage`."""
    try:
        return [line for line in path.read_text(errors="replace").splitlines() if line.strip()]
    except OSError as error:
        raise WrongUsage(f"{path} cannot be read: {error.strerror}", "correct the path") from error
