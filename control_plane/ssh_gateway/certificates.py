"""SSH certificates that clients of the gateway offer instead of a key.

asyncssh verifies the signature and the type of a certificate, its time, its principals, and that the client has the
private key. It accepts a certificate without principals for every user, so the principal is checked here as well.
"""

from collections.abc import Callable
from typing import Final

import asyncssh
from asyncssh.public_key import (
    CERT_TYPE_USER,
    KeyImportError,
    SSHOpenSSHCertificate,
    decode_ssh_certificate,
)

_CRITICAL: Final = frozenset({"force-command", "source-address"})
"""Critical options of certificates that asyncssh supports. It refuses certificates with any other critical option."""


def against(certificate: SSHOpenSSHCertificate, user: str) -> str | None:
    """Return why a certificate is not valid for a user now; None if it is valid. The key that signed the certificate is
    not checked.
    """
    if list(certificate.principals) != [user]:
        return "the certificate does not have the user as its only principal"
    if not _CRITICAL.isdisjoint(certificate.options):
        return "the certificate has a critical option, which is not supported"
    try:
        certificate.validate(CERT_TYPE_USER, user)
    except ValueError as error:
        return str(error)
    return None


def key_id_of(certificate: SSHOpenSSHCertificate) -> str:
    """Return the key id of an SSH certificate: the caller that requested the certificate from the control plane."""
    key_id: str = certificate._key_id  # noqa: SLF001 (asyncssh has no accessor)
    return key_id


def serial_of(certificate: SSHOpenSSHCertificate) -> int:
    """Return the serial number of an SSH certificate."""
    serial: int = certificate._serial  # noqa: SLF001 (asyncssh has no accessor)
    return serial


def offering_certificates(
    connection: asyncssh.SSHServerConnection, offered: Callable[[SSHOpenSSHCertificate | None], None]
) -> None:
    """Call `offered` with each certificate that a client offers, before asyncssh validates it; with None if it offers
    a key.
    """
    # asyncssh passes the key with which a certificate is signed to the server, but not the certificate.
    validate = connection.validate_public_key

    async def validate_offered(username: str, key_data: bytes, msg: bytes, signature: bytes) -> bool:
        offered(_certificate_in(key_data))
        return await validate(username, key_data, msg, signature)

    connection.validate_public_key = validate_offered  # type: ignore[method-assign]  # asyncssh has no other hook


def _certificate_in(key_data: bytes) -> SSHOpenSSHCertificate | None:
    try:
        certificate = decode_ssh_certificate(key_data)
    except KeyImportError:
        return None
    return certificate if isinstance(certificate, SSHOpenSSHCertificate) else None
