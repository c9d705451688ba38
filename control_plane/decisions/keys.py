"""Decisions about an API key: whether it can be rotated."""

from datetime import datetime
from typing import NamedTuple

from control_plane.decisions.refusals import Objection
from events.values import ServiceAccountId


class IssuedKey(NamedTuple):
    """Columns of an API key's row that decide about its rotation: the time of its expiry, the reason of its revocation,
    the id of the key that replaces it, its service account and the reason why the account is disabled; each None if
    there is none.
    """

    key_id: str
    expires_at: datetime | None
    revoked: str | None
    successor: str | None
    service_account: ServiceAccountId | None = None
    disabled: str | None = None


def against_rotating(key: IssuedKey, now: datetime) -> list[Objection]:
    """Return the reason why an API key cannot be rotated at the time `now`; an empty list if it can."""
    if key.revoked is not None:
        return [Objection("key_not_active", f"API key {key.key_id} was revoked: {key.revoked}")]
    if key.service_account is not None and key.disabled is not None:
        return [inactive_service_account(key.service_account, key.disabled)]
    if key.expires_at is not None and key.expires_at <= now:
        reason = f"API key {key.key_id} expired at {key.expires_at.isoformat()}"
        return [Objection("key_not_active", reason)]
    if key.successor is not None:
        reason = f"API key {key.key_id} was already replaced by {key.successor}; rotate that key"
        return [Objection("key_replaced", reason)]
    return []


def inactive_service_account(account: str, disabled: str, field: str | None = None) -> Objection:
    """Return the objection to a new key of an account that is disabled for the reason `disabled`."""
    reason = f"service account {account} is disabled: {disabled}"
    return Objection("service_account_not_active", reason, field)
