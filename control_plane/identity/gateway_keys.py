"""Keys of the SSH gateway: one for each allocation that permits the gateway to log in to its slices.

The private key is derived from the master key of personal data and the id of the allocation, so it is stored nowhere:
each process of the API and of the SSH gateway can derive it. The public key is recorded in the request of the
allocation. The slices accept the key itself, with which the gateway logs in for terminals in the browser, and SSH
certificates that are signed with it for the allocation.
"""

from typing import Final

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from events.ledger.project_keys import ring
from events.values import AllocationId, SshPublicKey

_PURPOSE: Final = "SSH gateway key of "
_COMMENT: Final = "sliceplane-gateway"


def gateway_key(allocation: AllocationId) -> Ed25519PrivateKey:
    """Return the private key of the SSH gateway for an allocation. Raises `NoPersonalKey`."""
    return Ed25519PrivateKey.from_private_bytes(ring().master.derived(f"{_PURPOSE}{allocation}"))


def public_gateway_key(allocation: AllocationId) -> SshPublicKey:
    """Return the public key of the SSH gateway for an allocation, as an `authorized_keys` line. Raises
    `NoPersonalKey`.
    """
    public = gateway_key(allocation).public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    return SshPublicKey(f"{public.decode()} {_COMMENT}")
