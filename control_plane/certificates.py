"""TLS files named by the settings: the certificate of the API and the CA of Redis, read when a program starts.

A file that cannot be used ends the program before it accepts requests, with one sentence that names the file.
"""

import ssl
from pathlib import Path

from control_plane.settings import Settings
from tasks.trust import UnusableCa, trust


class UnusableCertificate(Exception):
    """A TLS file named by the settings cannot be used; `path` and `reason` state which one and why."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.path, self.reason = path, reason


def server_context(settings: Settings) -> ssl.SSLContext | None:
    """Return the TLS context of the API (TLS 1.2 or newer), or None if it serves plain HTTP.

    Raises `UnusableCertificate`.
    """
    certificate, key = settings.tls_certificate_file, settings.tls_key_file
    if certificate is None or key is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    for path in (certificate, key):
        _text(path)  # load_cert_chain does not report which of the two files is missing
    try:
        context.load_cert_chain(certificate, key)
    except ssl.SSLError as error:
        raise UnusableCertificate(
            certificate, f"the key {key} does not match the certificate ({error.reason})"
        ) from None
    return context


def redis_ca(settings: Settings) -> str | None:
    """Return the CA (PEM) used to verify Redis, or None to use the system's CAs. Raises `UnusableCertificate`."""
    path = settings.redis_ca_file
    if path is None:
        return None
    ca = _text(path)
    try:
        trust(ca)
    except UnusableCa as error:
        raise UnusableCertificate(path, str(error)) from None
    return ca


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError as error:
        raise UnusableCertificate(path, error.strerror or str(error)) from None
    except UnicodeDecodeError:
        raise UnusableCertificate(path, "the file is not text and therefore not PEM") from None
