"""What the API shows over TLS, and the CA of Redis: files of the settings, read when a program starts.

A file that cannot be used ends the program before it serves anybody, with one sentence.
"""

import ssl
from pathlib import Path

from control_plane.settings import Settings
from tasks.trust import UnusableCa, trust


class UnusableCertificate(Exception):
    """A file that settings name cannot be used: which, and why."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.path, self.reason = path, reason


def server_context(settings: Settings) -> ssl.SSLContext | None:
    """What the API serves TLS with, 1.2 at least; None when it serves plain HTTP. Raises `UnusableCertificate`."""
    certificate, key = settings.tls_certificate_file, settings.tls_key_file
    if certificate is None or key is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    for path in (certificate, key):
        _text(path)  # load_cert_chain does not say which of the two it misses
    try:
        context.load_cert_chain(certificate, key)
    except ssl.SSLError as error:
        why = "is not the key of that certificate" if error.reason == "KEY_VALUES_MISMATCH" else "do not fit"
        raise UnusableCertificate(certificate, f"it and {key} {why} ({error.reason})") from None
    return context


def redis_ca(settings: Settings) -> str | None:
    """The PEM of the CA that Redis is believed by; None for the system's. Raises `UnusableCertificate`."""
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
        raise UnusableCertificate(path, "it is no text, and so no PEM") from None
