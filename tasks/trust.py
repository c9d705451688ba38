"""Verification of TLS servers: the trusted CA, and a description of a failure in one sentence.

A server is trusted if its certificate is signed by the given CA, names the requested host or address, and is valid
according to this machine's clock. With a given CA only that CA counts; without one the system's CAs count. TLS below
1.2 is refused, and verification cannot be disabled.
"""

import ssl
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Annotated, Final

from pydantic import AfterValidator, Field

_LIMIT: Final = 65_536

# X509_V_ERR_* of OpenSSL's x509_vfy.h.
_SIGNATURE: Final = frozenset({2, 7, 18, 19, 20, 21, 24, 27, 30})
_EARLY: Final = 9
_EXPIRED: Final = 10
_OTHER_NAME: Final = frozenset({62, 64})
_NO_TLS: Final = frozenset({"WRONG_VERSION_NUMBER", "HTTP_REQUEST", "RECORD_LAYER_FAILURE"})
_OLD_TLS: Final = frozenset(
    {"UNSUPPORTED_PROTOCOL", "TLSV1_ALERT_PROTOCOL_VERSION", "NO_PROTOCOLS_AVAILABLE"}
)


class UnusableCa(ValueError):
    """The given CA contains no readable certificate."""


def trust(ca: str | None) -> ssl.SSLContext:
    """Return the TLS context of a client that trusts `ca` (one or several PEM certificates). Raises `UnusableCa`."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # verifies the certificate, and the name in it
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if ca is None:
        context.load_default_certs()
        return context
    try:
        context.load_verify_locations(cadata=ca)
    except (
        ssl.SSLError,
        ValueError,
        TypeError,
    ):  # not PEM, empty, or not ASCII
        raise UnusableCa("the CA bundle contains no readable PEM certificate") from None
    return context


def _readable(ca: str) -> str:
    trust(ca)
    return ca


CaPem = Annotated[str, Field(max_length=_LIMIT), AfterValidator(_readable)]


def why_untrusted(error: BaseException) -> str | None:
    """Return a sentence with the TLS error that failed a connection; None if TLS was not the cause."""
    for each in _causes(error):
        if isinstance(each, ssl.SSLCertVerificationError):
            return _unverified(each)
        if isinstance(each, ssl.SSLError):
            return _broken(each)
    return None


def _causes(error: BaseException) -> Iterator[BaseException]:
    found: BaseException | None = error
    seen: set[int] = set()
    while found is not None and id(found) not in seen:
        seen.add(id(found))
        yield found
        found = found.__cause__ or found.__context__


def _unverified(error: ssl.SSLCertVerificationError) -> str:
    code = error.verify_code
    if code in (_EXPIRED, _EARLY):
        what = "the certificate has expired" if code == _EXPIRED else "the certificate is not valid yet"
        # The date without the time, because a repeated reason is logged only once.
        return f"{what}, or this machine's clock is wrong: it shows {datetime.now(UTC):%Y-%m-%d}"
    if code in _SIGNATURE:
        return "the certificate is not signed by a trusted CA"
    if code in _OTHER_NAME:
        return f"the certificate is for another host: {error.verify_message}"
    return f"the certificate is invalid: {error.verify_message}"


def _broken(error: ssl.SSLError) -> str:
    if error.reason in _NO_TLS:
        return "the server does not support TLS"
    if error.reason in _OLD_TLS:
        return "the server does not support TLS 1.2 or newer, which is required"
    return f"the TLS connection failed: {error.reason or error}"
