"""Context of every command: find the control plane, connect to it, and turn failures into a message and an exit
code.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import TypeVar
from uuid import uuid4

import msgspec
import typer
from rich.console import RenderableType

from control_plane.cli.access import CA_VARIABLE, Access, Given, find_access
from control_plane.cli.curl import curl
from control_plane.cli.failures import ExitCode, Failure, Unreachable, WrongUsage, failure_of
from control_plane.cli.screen import Format, Screen, UnnamedFormat
from control_plane.client import calls
from control_plane.client.answers import Node
from control_plane.client.errors import Forbidden, SliceplaneError
from control_plane.client.exchange import Call, ListCall, Pages, Prepared, Reply, WatchCall, given, prepare
from control_plane.client.streams import HEADERS, Following
from control_plane.client.sync import Client, Listing

T = TypeVar("T")


class _AsCurl(Exception):
    """The command was run with --as-curl; the requests are printed instead of sent."""

    def __init__(self, requests: Sequence[Prepared]) -> None:
        super().__init__()
        self.requests = requests


class Session:
    """The connection and the screen of one command. With --as-curl, the first request ends the command.

    If a response described a past state, `recorded` is the time of the last event included in that state. `asides` are
    notes for the user about responses, printed at the end.
    """

    def __init__(self, client: Client, screen: Screen, access: Access, *, as_curl: bool = False) -> None:
        self.client, self.screen, self.access, self.as_curl = client, screen, access, as_curl
        self.asides: dict[str, None] = {}
        self.recorded: datetime | None = None

    def send(self, call: Call[T]) -> Reply[T]:
        """Send a request and return its response. Raises a `SliceplaneError` if it fails."""
        [reply] = self.each(call)
        return reply

    def each(self, *several: Call[T]) -> Iterator[Reply[T]]:
        """Send requests one after the other, and yield their responses."""
        if self.as_curl:
            raise _AsCurl([prepare(call, str(uuid4())) for call in several])
        for call in several:
            reply = self.client.send(call)
            self._note(reply)
            yield reply

    def readable_node(self, name: str) -> Node | None:
        """Return a node, or None if the caller is not permitted to read nodes."""
        try:
            return self.client.run(calls.node(name))
        except Forbidden:
            return None

    def listing(self, call: ListCall[T], limit: int | None = None) -> Listing[T]:
        """Return the items of a list, at most `limit`."""
        if self.as_curl:
            page = Pages(call, limit).next()
            raise _AsCurl([] if page is None else [prepare(page, "")])
        return self.client.listing(call, limit)

    def follow(self, watch: WatchCall[T], following: Following | None = None) -> Iterator[Reply[T]]:
        """Yield the messages of a stream."""
        if self.as_curl:
            raise _AsCurl([Prepared("GET", watch.path, given(watch.params), HEADERS)])
        return self.client.follow(watch, following)

    def show_list(
        self, call: ListCall[T], rows: Callable[[list[T]], RenderableType], limit: int | None = None
    ) -> None:
        """Print a list, at most `limit` items."""
        listing = self.listing(call, limit)
        items = list(listing)
        self.noted(listing)
        self.screen.many(items, rows, listing.next_cursor)

    def noted(self, listing: Listing[T]) -> None:
        """Add notes about a list to `asides`: the past position that the list describes, and whether --limit cut it
        off.
        """
        if listing.last_page is not None:
            self._note(listing.last_page)
        if listing.next_cursor is not None:
            self.asides["more results available; raise --limit"] = None

    def _note(self, reply: Reply[T]) -> None:
        if reply.position is None:
            return
        self.recorded = reply.recorded
        recorded = "" if reply.recorded is None else f", recorded {reply.recorded.isoformat()}"
        before = "" if reply.recorded is not None else ", which is before the first event of the ledger"
        position = reply.position.rpartition(".")[2]  # without the epoch, as --at takes it
        self.asides[f"as of position {position}{recorded}{before}"] = None


@contextmanager
def screen(output: Format | UnnamedFormat) -> Iterator[Screen]:
    """Provide the screen to a command without a connection. On a failure, print it and exit with its exit code."""
    made = Screen(output)
    try:
        yield made
    except Failure as failure:
        _end(made, failure)
    except SliceplaneError as error:
        _end(made, failure_of(error))
    except msgspec.DecodeError as error:
        advice = "check that the versions of this client and of the control plane are compatible: sliceplane doctor"
        _end(made, Unreachable(f"the response of the control plane is not valid: {error}", advice))
    except KeyboardInterrupt:
        raise typer.Exit(ExitCode.INTERRUPTED) from None


@contextmanager
def session(context: typer.Context, output: Format | UnnamedFormat) -> Iterator[Session]:
    """Provide the connection and the screen to a `with` block. On a failure, print it and exit with its exit code."""
    given_options = options(context)
    with screen(output) as made:
        access = find_access(given_options)
        for warning in access.warnings:
            made.warn(warning)
        with Client(access.url, access.api_key, ca=access.ca) as client:
            current = Session(client, made, access, as_curl=given_options.as_curl)
            try:
                yield current
            except _AsCurl as printed:
                _print_curl(current, printed.requests)
            for aside in current.asides:
                made.note(aside)


def options(context: typer.Context) -> Given:
    """Return the options before the command: `sliceplane --url ... COMMAND`."""
    return context.find_object(Given) or Given()


def refuse_as_curl(context: typer.Context, command: str) -> None:
    """Raise `WrongUsage` if --as-curl was given for a command that does more than send one request."""
    if options(context).as_curl:
        raise WrongUsage(
            f"--as-curl cannot be used with sliceplane {command}, which does more than send one request"
        )


def _print_curl(current: Session, requests: Sequence[Prepared]) -> None:
    access = current.access
    for request in requests:
        current.screen.plain(curl(request, access.url, access.ca_word))
    if access.ca_word == CA_VARIABLE:
        current.screen.note("set SLICEPLANE_CA to a file with the CA of the control plane")


def _end(screen: Screen, failure: Failure) -> None:
    screen.failure(failure)
    raise typer.Exit(failure.exit_code) from failure
