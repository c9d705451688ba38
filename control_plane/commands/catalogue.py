"""Commands about the catalogue: create an entry, publish a further version of it, and retire it."""

from collections.abc import Callable

from sqlalchemy.ext.asyncio import AsyncConnection

from control_plane.decisions.catalogue import (
    entry_exists,
    publish_again,
    published,
    retire,
    specify,
    unknown_entry,
)
from control_plane.decisions.refusals import Conflict, Objection, UnknownName
from control_plane.handle import Command, Decision, Transaction
from control_plane.origin import Origin
from events.allocations import AllocationRequested, AllocationSpecified
from events.entries import Entry, EntryContent, EntryFact, EntryPublished
from events.ledger.append import Change
from events.values import AppProfileName, EntryKind, stream_of_entry
from read_models import catalogue


def create_entry(
    kind: EntryKind,
    name: str,
    content: EntryContent,
    origin: Origin,
    render: Callable[[EntryPublished], str],
) -> Command:
    """Create an entry with its first version; `render` makes the response. Raises `Conflict` if the entry exists."""

    async def command(transaction: Transaction) -> Decision:
        if await catalogue.find(transaction.conn, [(kind, name)]):
            raise Conflict(entry_exists(kind, name))
        fact = published(name, 1, content)
        change = Change(stream_of_entry(kind, name), 0, (fact,))
        return Decision((change,), origin.at(transaction.now), render(fact))

    return command


def publish_version(kind: EntryKind, name: str, content: EntryContent, origin: Origin) -> Command:
    """Publish a further version of an entry, unless its newest version is offered and has this content. Raises
    `UnknownName` if the entry does not exist.
    """

    async def command(transaction: Transaction) -> Decision:
        entry = await _locked(transaction.conn, kind, name)
        return _decision(transaction, origin, entry, publish_again(entry, content))

    return command


def retire_entry(kind: EntryKind, name: str, reason: str, origin: Origin) -> Command:
    """Retire an entry: no allocation can be created with it any more. Retiring it again changes nothing. Raises
    `UnknownName` if the entry does not exist.
    """

    async def command(transaction: Transaction) -> Decision:
        entry = await _locked(transaction.conn, kind, name)
        return _decision(transaction, origin, entry, retire(entry, reason))

    return command


async def specification(
    conn: AsyncConnection, request: AllocationRequested, app_profile: AppProfileName | None
) -> AllocationSpecified | list[Objection]:
    """Return the fact that records the entries of an allocation with their content, or every objection to them. Holds
    the entries like `hold_entries`.
    """
    return specify(request, app_profile, await hold_entries(conn, request, app_profile))


async def hold_entries(
    conn: AsyncConnection, request: AllocationRequested, app_profile: AppProfileName | None
) -> dict[EntryKind, Entry]:
    """Return those entries of an allocation that exist, by kind.

    Until the transaction ends, no other transaction can retire these entries, so that no allocation with an entry
    follows the entry's retirement in the ledger. Rows of entries are locked after those of projects, and before those
    of slots.
    """
    return await catalogue.find(conn, entries_of(request, app_profile), lock="share")


def entries_of(
    request: AllocationRequested, app_profile: AppProfileName | None
) -> list[tuple[EntryKind, str]]:
    """Return the kinds and names of the entries of an allocation."""
    names: list[tuple[EntryKind, str]] = [("sku", request.sku), ("image", request.image)]
    return names if app_profile is None else [*names, ("app_profile", app_profile)]


def _decision(
    transaction: Transaction, origin: Origin, entry: Entry, facts: tuple[EntryFact, ...]
) -> Decision:
    stream = stream_of_entry(entry.kind, entry.name)
    changes = (Change(stream, entry.stream_version, facts),) if facts else ()
    return Decision(changes, origin.at(transaction.now))


async def _locked(conn: AsyncConnection, kind: EntryKind, name: str) -> Entry:
    found = await catalogue.find(conn, [(kind, name)], lock="update")
    if kind not in found:
        raise UnknownName(unknown_entry(kind, name))
    return found[kind]
