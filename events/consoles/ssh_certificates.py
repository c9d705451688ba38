"""Facts about SSH certificates of callers for the slices of an allocation. Stream: `ssh-certificate-<serial>`.

A certificate has a stream of its own, so that it does not change the version of the allocation. Its events have the
project and the correlation id of the allocation.
"""

from datetime import datetime

from events.facts import Fact
from events.values import AllocationId


class SshCertificateIssued(Fact, frozen=True):
    """An SSH certificate was signed with the gateway key of an allocation, for the caller that requested it."""

    serial: int
    """Serial number of the certificate."""
    allocation_id: AllocationId
    """Allocation of the slices that accept the certificate; its id is the only principal of the certificate."""
    key_id: str
    """Key id of the certificate: the caller that requested it, as in `actor`."""
    fingerprint: str
    """Fingerprint of the public key in the certificate: `SHA256:` and the hash in Base64, as ssh-keygen prints it."""
    valid_until: datetime
    """Time from which the certificate is no longer accepted."""


SshCertificateFact = SshCertificateIssued
