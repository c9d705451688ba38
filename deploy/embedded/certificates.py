"""A small certificate authority for one machine: it issues the TLS certificates of API and Redis.

The folder `tls` of the state folder holds three files: `ca.key` (the CA's private key and certificate), `ca.pem` (the
CA's certificate, readable by every user) and `server.pem` (the servers' private key and certificate). A key and its
certificate are in one file that is replaced atomically, so that a crash never separates them. The CA is valid for ten
years, the servers' certificate for one. At each start, `ensure` replaces a certificate that is missing, unreadable,
about to expire, or lacks an address.
"""

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from deploy.embedded.layout import write_private_text

CA_LIFE: Final = timedelta(days=3650)
SERVER_LIFE: Final = timedelta(days=365)
MINIMUM_REMAINING_VALIDITY: Final = timedelta(days=30)
"""Minimum remaining validity at a start; a certificate with less is replaced."""
_VALID_SINCE: Final = timedelta(days=1)
"""How far in the past the validity begins: a node's clock may be hours behind, or this machine's clock ahead."""


@dataclass(frozen=True, slots=True)
class Certificates:
    """Files with the CA's certificate, and with the servers' certificate and private key."""

    ca: Path
    server: Path


@dataclass(frozen=True, slots=True)
class _Pair:
    key: ec.EllipticCurvePrivateKey
    certificate: x509.Certificate

    def pem(self) -> str:
        key = self.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        return (key + self.certificate.public_bytes(Encoding.PEM)).decode()


def ensure(folder: Path, addresses: Sequence[str], now: datetime) -> Certificates:
    """Return certificates valid now and for at least `MINIMUM_REMAINING_VALIDITY`, for `addresses` (IPs) and
    `localhost`.

    Missing and unsuitable certificates are created. Raises `OSError` if a file cannot be read or written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    found = Certificates(folder / "ca.pem", folder / "server.pem")
    ca = _read(folder / "ca.key")
    if ca is None or not _is_valid_long_enough(ca.certificate, now):
        ca = _new_ca(now)
        write_private_text(folder / "ca.key", ca.pem())
    write_private_text(found.ca, ca.certificate.public_bytes(Encoding.PEM).decode())
    found.ca.chmod(0o644)
    server = _read(found.server)
    if server is None or not _is_suitable(server.certificate, ca, addresses, now):
        write_private_text(found.server, _new_server(ca, addresses, now).pem())
    return found


def _read(path: Path) -> _Pair | None:
    """Return the private key and certificate in a PEM file, or None if the file is missing, incomplete or invalid."""
    try:
        content = path.read_bytes()
        key, certificate = (
            load_pem_private_key(content, None),
            x509.load_pem_x509_certificate(content),
        )
    except (FileNotFoundError, ValueError):
        return None
    if not isinstance(key, ec.EllipticCurvePrivateKey) or key.public_key() != certificate.public_key():
        return None
    return _Pair(key, certificate)


def _is_valid_long_enough(certificate: x509.Certificate, now: datetime) -> bool:
    return (
        certificate.not_valid_before_utc <= now
        and certificate.not_valid_after_utc - now >= MINIMUM_REMAINING_VALIDITY
    )


def _is_suitable(certificate: x509.Certificate, ca: _Pair, addresses: Sequence[str], now: datetime) -> bool:
    try:
        certificate.verify_directly_issued_by(ca.certificate)
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (ValueError, TypeError, InvalidSignature, x509.ExtensionNotFound):
        return False
    return _is_valid_long_enough(certificate, now) and set(_names(addresses)) <= set(names)


def _new_ca(now: datetime) -> _Pair:
    key = ec.generate_private_key(ec.SECP256R1())
    # A unique name: clients that still trust an older CA report an unknown issuer and not a forged signature.
    serial = x509.random_serial_number()
    name = _name(f"Sliceplane CA {serial:x}"[:32])
    usage = _usage(digital_signature=False, signs=True)
    builder = _builder(name, name, key.public_key(), serial, (now, CA_LIFE))
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    builder = builder.add_extension(usage, critical=True)
    builder = builder.add_extension(
        x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False
    )
    return _Pair(key, builder.sign(key, SHA256()))


def _new_server(ca: _Pair, addresses: Sequence[str], now: datetime) -> _Pair:
    key = ec.generate_private_key(ec.SECP256R1())
    life = min(SERVER_LIFE, ca.certificate.not_valid_after_utc - now)
    issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(ca.key.public_key())
    builder = _builder(
        _name("Sliceplane"),
        ca.certificate.subject,
        key.public_key(),
        x509.random_serial_number(),
        (now, life),
    )
    builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    builder = builder.add_extension(_usage(digital_signature=True, signs=False), critical=True)
    builder = builder.add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
    builder = builder.add_extension(x509.SubjectAlternativeName(_names(addresses)), critical=False)
    builder = builder.add_extension(issuer, critical=False)
    return _Pair(key, builder.sign(ca.key, SHA256()))


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePublicKey,
    serial: int,
    life: tuple[datetime, timedelta],
) -> x509.CertificateBuilder:
    begin, length = life
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(serial)
        .not_valid_before(begin - _VALID_SINCE)
        .not_valid_after(begin + length)
    )


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])


def _names(addresses: Sequence[str]) -> list[x509.GeneralName]:
    numbers = [x509.IPAddress(ipaddress.ip_address(each)) for each in dict.fromkeys(addresses)]
    return [x509.DNSName("localhost"), *numbers]


def _usage(*, digital_signature: bool, signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=digital_signature,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs,
        crl_sign=signs,
        encipher_only=False,
        decipher_only=False,
    )
