"""The output formats: pages for people; JSON, YAML and names for programs. Results go to stdout, all else to stderr.

In a format for programs stdout contains one document (for streams, one document for each event) and nothing else, and a
failure is one JSON line on stderr in the shape of a problem document.
"""

import sys
from collections.abc import Callable, Iterator, Sequence
from enum import StrEnum
from typing import Final, TypeVar

import msgspec
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from control_plane.cli.failures import Failure, WrongUsage
from control_plane.cli.yaml_text import yaml_text
from control_plane.client.exchange import Reply

T = TypeVar("T")
_CONTROL_CHARACTERS: Final = {
    code: None for code in (*range(32), *range(127, 160)) if chr(code) not in "\n\t"
}
_WIDE: Final = 2000
"""Minimum width, in columns, that is assumed for tables, and for all output that does not go to a terminal: enough to
print each row on one line, also with several ids and a long reason.
"""
_NAMES: Final = ("id", "name", "stream", "actor")
"""Fields that can name a resource. The name of a resource is the first of these fields that its response has."""


class Format(StrEnum):
    """Output format of a command. `name` prints only the name of each resource, one on each line."""

    TABLE = "table"
    JSON = "json"
    YAML = "yaml"
    NAME = "name"


class UnnamedFormat(StrEnum):
    """Output format of a command with results that have no names."""

    TABLE = "table"
    JSON = "json"
    YAML = "yaml"


class Screen:
    """Output of one command. `machine` is whether the format is one for programs."""

    def __init__(self, output: Format | UnnamedFormat) -> None:
        self.format = Format(output)
        self.machine = self.format is not Format.TABLE
        self._out, self.err = _console(stderr=False), _console(stderr=True)
        self._wide = _console(stderr=False, wide=True)

    @property
    def lively(self) -> bool:
        """Whether a displayed line may be redrawn: stderr is a terminal, and the output is for people."""
        return self.err.is_terminal and not self.machine

    def page(self, page: RenderableType) -> None:
        self._out.print(page)

    def rows(self, rows: RenderableType) -> None:
        """Print rows so that no id is split: on a narrow terminal, a table becomes a block of lines for each row, and
        other lines wrap.
        """
        if isinstance(rows, Table) and self._out.is_terminal and not self._fits(rows):
            for block in _blocks(rows):
                self._out.print(block)
        else:
            self._wide.print(rows, crop=False, soft_wrap=True)

    def _fits(self, rows: Table) -> bool:
        return self._wide.measure(rows).maximum <= self._out.width

    def one(self, reply: Reply[T], page: Callable[[T], RenderableType]) -> None:
        """Print one response: for people the result of `page`, for programs the response itself."""
        if self.machine:
            self.document(reply.raw)
        else:
            self.page(page(reply.value))

    def many(
        self, items: Sequence[Reply[T]], rows: Callable[[list[T]], RenderableType], cursor: str | None = None
    ) -> None:
        """Print a list: for people the result of `rows`, for programs one document in the shape of an API page.
        `cursor` continues a list that --limit cut off.
        """
        if self.format is Format.NAME:
            for each in items:
                _write(_name(each.raw))
        elif self.machine:
            listed = [msgspec.Raw(each.raw) for each in items]
            self.document(msgspec.json.encode({"items": listed, "next_cursor": cursor}))
        else:
            self.rows(rows([each.value for each in items]))

    def each(self, reply: Reply[T], line: Callable[[T], RenderableType]) -> None:
        """Print one item of a stream at once: for people the result of `line`, for programs one document."""
        match self.format:
            case Format.TABLE:
                self.rows(line(reply.value))
            case Format.JSON:
                _write(msgspec.json.format(reply.raw, indent=-1).decode())
            case Format.YAML:
                _write(f"---\n{yaml_text(msgspec.json.decode(reply.raw))}".rstrip("\n"))
            case Format.NAME:
                _write(_name(reply.raw))

    def document(self, raw: bytes) -> None:
        """Print one JSON document from the control plane, converted to the output format of the command."""
        match self.format:
            case Format.YAML:
                _write(yaml_text(msgspec.json.decode(raw)).rstrip("\n"))
            case Format.NAME:
                _write(_name(raw))
            case _:
                _write(msgspec.json.format(raw, indent=2).decode())

    def note(self, text: str) -> None:
        """Print a note for the user on stderr; omitted in formats for programs."""
        if not self.machine:
            # As for warnings, the user may copy a command or a URL.
            self.err.print(Text(text, style="dim"), soft_wrap=True)

    def warn(self, text: str) -> None:
        if not self.machine:
            # The terminal wraps long lines. A line break inside a command would prevent that a user copies it.
            self.err.print(Text.assemble(("warning: ", "yellow"), text), soft_wrap=True)

    def plain(self, text: str) -> None:
        """Print text on stdout in every format, without colours. Long lines are not wrapped at the width of the
        terminal.
        """
        _write(text)

    def text(self, reply: Reply[T], text: Callable[[T], str]) -> None:
        """Print the text of one response: for people without control characters and without wrapping long lines, for
        programs the response itself.
        """
        if self.machine:
            self.document(reply.raw)
        elif safe := text(reply.value).translate(_CONTROL_CHARACTERS):
            _write(safe.removesuffix("\n"))

    def failure(self, failure: Failure) -> None:
        if self.machine:
            print(msgspec.json.encode(_as_problem(failure)).decode(), file=sys.stderr)
        else:
            self.err.print(_block(failure))


class _SafeConsole(Console):
    """Console that removes control characters: text from a node must not control the terminal."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterator[Segment]:
        for text, style, control in super().render(renderable, options):
            yield Segment(text if control else text.translate(_CONTROL_CHARACTERS), style, control)


def _console(*, stderr: bool, wide: bool = False) -> Console:
    console = _SafeConsole(stderr=stderr, highlight=False, emoji=False, markup=False)
    if wide or not console.is_terminal:
        console.width = max(console.width, _WIDE)
    return console


def _blocks(rows: Table) -> Iterator[RenderableType]:
    """Yield a block for each row of a table. A block has a line for each cell that is not empty, with the name of its
    column.
    """
    names = [str(column.header).lower() for column in rows.columns]
    for index, cells in enumerate(zip(*(column.cells for column in rows.columns), strict=True)):
        block = Table.grid(padding=(0, 2, 0, 0))
        block.add_column(style="dim", no_wrap=True)
        block.add_column(overflow="fold")
        for name, cell in zip(names, cells, strict=True):
            if str(cell) not in {"", "-"}:
                block.add_row(name, cell)
        if index:
            yield Text()
        yield block


def _name(raw: bytes) -> str:
    found = msgspec.json.decode(raw, type=dict[str, object])
    for field in _NAMES:
        if field in found:
            return str(found[field])
    raise WrongUsage(
        "the result has no name that -o name could print",
        "use another output format: -o json, -o yaml or -o table",
    )


def _write(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def _as_problem(failure: Failure) -> dict[str, object]:
    return {
        "title": failure.what,
        "reasons": failure.reasons,
        "advice": failure.advice,
        "request_id": failure.request_id or None,
        "exit_code": int(failure.exit_code),
    }


def _block(failure: Failure) -> Text:
    text = Text.assemble(("error: ", "bold red"), failure.what)
    for reason in failure.reasons:
        where = f" ({reason.field})" if reason.field else ""
        text.append(f"\n  - {reason.message}{where}").append(f"  [{reason.code}]", "dim")
    for advice in failure.advice:
        text.append("\n  > ", "cyan").append(advice)
    if failure.request_id:
        text.append(f"\n  request {failure.request_id}", "dim")
    return text
