"""The two output formats: pages for people and JSON for programs. Results go to stdout, everything else to stderr.

With --json stdout contains one document (for streams, one document per line) and nothing else, and a failure is one
JSON line on stderr in the shape of a problem document.
"""

import sys
from collections.abc import Iterable, Iterator
from typing import Final

import msgspec
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from control_plane.cli.client import Listing
from control_plane.cli.failures import Failure

_CONTROL_CHARACTERS: Final = {
    code: None for code in (*range(32), *range(127, 160)) if chr(code) not in "\n\t"
}
_WIDE: Final = 240
"""Columns of rows, and of all output that is not to a terminal: enough that no id is wrapped."""


class Screen:
    def __init__(self, *, json: bool) -> None:
        self.json = json
        self._out, self.err = _console(stderr=False), _console(stderr=True)
        self._wide = _console(stderr=False, wide=True)

    @property
    def lively(self) -> bool:
        """Whether a line may be redrawn: stderr is a terminal, and the output is not JSON."""
        return self.err.is_terminal and not self.json

    def page(self, page: RenderableType) -> None:
        self._out.print(page)

    def rows(self, rows: RenderableType) -> None:
        """Print the lines of a page at their full length: on a narrow terminal they wrap, but no id is split."""
        self._wide.print(rows, crop=False, soft_wrap=True)

    def note(self, text: str) -> None:
        """Print a note for the user on stderr; omitted with --json."""
        if not self.json:
            self.err.print(Text(text, style="dim"))

    def warn(self, text: str) -> None:
        if not self.json:
            # The terminal wraps long lines. A line break inside a command would prevent that a user copies it.
            self.err.print(Text.assemble(("warning: ", "yellow"), text), soft_wrap=True)

    def document(self, raw: bytes) -> None:
        """Print one JSON document, indented, as the control plane returned it."""
        _write(msgspec.json.format(raw, indent=2))

    def documents(self, items: Iterable[msgspec.Raw]) -> None:
        """Print a list as one document in the shape of an API page; its cursor shows whether --limit cut off items."""
        listed = list(items)
        cursor = items.next_cursor if isinstance(items, Listing) else None
        self.document(msgspec.json.encode({"items": listed, "next_cursor": cursor}))

    def line(self, raw: bytes) -> None:
        """Print one JSON document on one line, and flush it at once."""
        _write(msgspec.json.format(raw, indent=-1))

    def failure(self, failure: Failure) -> None:
        if self.json:
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


def _write(document: bytes) -> None:
    sys.stdout.write(document.decode() + "\n")
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
