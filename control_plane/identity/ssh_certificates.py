"""SSH certificates of callers: an OpenSSH user certificate for the slices of one allocation (PROTOCOL.certkeys of
OpenSSH).

The certificate is signed with the gateway key of the allocation, and its only principal is the id of the allocation, so
slices of other allocations do not accept it. `SSHCertificateBuilder` of `cryptography` cannot certify keys of security
keys (`sk-...`): it would take them for ordinary keys. The format is therefore written here. It repeats the fields of
the public key unchanged, so it is the same for all types of keys.
"""

import os
from base64 import b64decode, b64encode
from dataclasses import dataclass
from datetime import datetime
from struct import pack
from typing import Final

from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from control_plane.identity.gateway_keys import gateway_key
from events.values import AllocationId, SshPublicKey

EXTENSIONS: Final = ("permit-agent-forwarding", "permit-port-forwarding", "permit-pty", "permit-user-rc")
"""What the certificate permits, in the order of names that the format requires."""
_USER: Final = 1
"""Type of a user certificate; 2 is a host certificate."""
_NONCE_BYTES: Final = 32


@dataclass(frozen=True, slots=True)
class Certified:
    """What a certificate states: this public key is that of the caller `key_id`, and may log in to the slices of this
    allocation.
    """

    allocation: AllocationId
    public_key: SshPublicKey
    key_id: str
    serial: int
    valid_from: datetime
    valid_until: datetime


def ssh_certificate(certified: Certified) -> str:
    """Return the signed certificate as a line of an OpenSSH certificate file. Raises `NoPersonalKey`."""
    authority = gateway_key(certified.allocation)
    kind, encoded, *comment = certified.public_key.split(" ", 2)
    certificate_kind = f"{kind.removesuffix('@openssh.com')}-cert-v01@openssh.com"
    public_key = b64decode(encoded)
    public_authority = authority.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    signed = b"".join(
        [
            _string(certificate_kind.encode()),
            _string(os.urandom(_NONCE_BYTES)),
            public_key[len(_string(kind.encode())) :],
            pack(">QI", certified.serial, _USER),
            _string(certified.key_id.encode()),
            _string(_string(certified.allocation.encode())),
            pack(">QQ", int(certified.valid_from.timestamp()), int(certified.valid_until.timestamp())),
            _string(b""),  # critical options
            _string(b"".join(_string(each.encode()) + _string(b"") for each in EXTENSIONS)),
            _string(b""),  # reserved
            _string(b64decode(public_authority.split()[1])),
        ]
    )
    signature = _string(b"ssh-ed25519") + _string(authority.sign(signed))
    blob = b64encode(signed + _string(signature)).decode()
    return " ".join([certificate_kind, blob, *comment])


def _string(data: bytes) -> bytes:
    """Return a `string` of RFC 4251 section 5."""
    return pack(">I", len(data)) + data
