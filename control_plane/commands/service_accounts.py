"""Commands about service accounts: create, disable and enable an account."""

from collections.abc import Callable

from sqlalchemy.ext.asyncio import AsyncConnection

from control_plane.commands.projects import against_projects
from control_plane.decisions.refusals import Objection, UnknownName, refuse_if
from control_plane.handle import Command, Decision, Transaction
from control_plane.origin import Origin
from events.ledger.append import Change
from events.service_accounts import ServiceAccountCreated, ServiceAccountDisabled, ServiceAccountEnabled
from events.values import ServiceAccountId, stream_of_service_account
from read_models import service_accounts
from read_models.service_accounts import ServiceAccountRow


def create_service_account(
    fact: ServiceAccountCreated, origin: Origin, render: Callable[[ServiceAccountCreated], str]
) -> Command:
    """Create a service account; `render` builds the JSON answer from the recorded fact.

    Raises `UnknownName` for a project that does not exist, and `Conflict` if the account exists, and for an archived
    project.
    """

    async def command(transaction: Transaction) -> Decision:
        against = await against_projects(transaction.conn, fact.projects)
        if await service_accounts.find(transaction.conn, fact.account) is not None:
            reason = f"a service account named {fact.account} exists already"
            against.append(Objection("service_account_exists", reason, "/id"))
        refuse_if(against)
        change = Change(stream_of_service_account(fact.account), 0, (fact,))
        return Decision((change,), origin.at(transaction.now), render(fact))

    return command


def disable_service_account(account: ServiceAccountId, reason: str, origin: Origin) -> Command:
    """Disable a service account: its keys are refused from now on. Raises `UnknownName`. Disabling it again changes
    nothing.
    """

    async def command(transaction: Transaction) -> Decision:
        row = await _locked(transaction.conn, account)
        if row.disabled is not None:
            return Decision((), origin.at(transaction.now))
        fact = ServiceAccountDisabled(account, reason)
        change = Change(stream_of_service_account(account), row.version, (fact,))
        return Decision((change,), origin.at(transaction.now))

    return command


def enable_service_account(account: ServiceAccountId, origin: Origin) -> Command:
    """Enable a service account: its keys are accepted again. Raises `UnknownName`. Enabling an active account changes
    nothing.
    """

    async def command(transaction: Transaction) -> Decision:
        row = await _locked(transaction.conn, account)
        if row.disabled is None:
            return Decision((), origin.at(transaction.now))
        change = Change(stream_of_service_account(account), row.version, (ServiceAccountEnabled(account),))
        return Decision((change,), origin.at(transaction.now))

    return command


async def _locked(conn: AsyncConnection, account: ServiceAccountId) -> ServiceAccountRow:
    row = await service_accounts.find(conn, account, lock=True)
    if row is None:
        raise UnknownName(unknown_service_account(account))
    return row


def unknown_service_account(account: str, field: str | None = None) -> Objection:
    """Return the objection to a service account that does not exist; `field` is the part of the request that names
    it.
    """
    return Objection("unknown_service_account", f"there is no service account named {account}", field)
