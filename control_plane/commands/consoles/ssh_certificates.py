"""The command that issues an SSH certificate for the slices of an allocation."""

import secrets
from collections.abc import Callable
from datetime import timedelta
from typing import Final

from control_plane.commands.loaded import load
from control_plane.decisions.allocation import against_ssh_certificate
from control_plane.decisions.refusals import refuse_if
from control_plane.handle import Command, Decision, Transaction
from control_plane.identity.ssh_certificates import Certified, ssh_certificate
from control_plane.origin import Origin
from events.consoles.ssh_certificates import SshCertificateIssued
from events.ledger.append import Change
from events.ssh_keys import fingerprint_of
from events.values import AllocationId, SshPublicKey, stream_of_ssh_certificate

SSH_CERTIFICATE_SECONDS: Final = 900
"""Time from the issue of a certificate to the end of its validity."""
_CLOCK_TOLERANCE: Final = timedelta(minutes=1)
"""How far the clock of a slice may be behind that of the database."""
_SERIAL_BITS: Final = 53
"""Programs that read JSON numbers as floating-point numbers, such as JavaScript, are exact up to this size. A serial
number that is in use makes the append fail, and the command retries with another one."""


def issue_ssh_certificate(
    allocation: AllocationId,
    public_key: SshPublicKey,
    origin: Origin,
    render: Callable[[SshCertificateIssued, str], str],
) -> Command:
    """Issue a certificate for a public key of the caller; `render` builds the JSON answer from the fact and the
    certificate.

    Raises `UnknownName`, and `Conflict` if the allocation is not active or has no gateway access.
    """

    async def command(transaction: Transaction) -> Decision:
        loaded = await load(transaction.conn, allocation)
        refuse_if(against_ssh_certificate(loaded.state))
        # A certificate has whole seconds.
        now = transaction.now.replace(microsecond=0)
        fact = SshCertificateIssued(
            serial=secrets.randbits(_SERIAL_BITS),
            allocation_id=allocation,
            key_id=origin.actor,
            fingerprint=fingerprint_of(public_key),
            valid_until=now + timedelta(seconds=SSH_CERTIFICATE_SECONDS),
        )
        certified = Certified(
            allocation, public_key, fact.key_id, fact.serial, now - _CLOCK_TOLERANCE, fact.valid_until
        )
        change = Change(stream_of_ssh_certificate(fact.serial), 0, (fact,))
        cause = origin.within(loaded.history[0].cause).at(transaction.now)
        return Decision((change,), cause, render(fact, ssh_certificate(certified)))

    return command
