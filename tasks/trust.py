"""Whom a program believes when it connects over TLS, and why it did not, in one sentence.

A server is believed when its certificate leads to a CA that we were given, names the host or address that we called,
and is valid by this machine's clock. A CA that was given counts alone; without one the system's count. Nothing below
TLS 1.2, and no way to leave the check out.
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
    """What was given as a CA holds no certificate that can be read."""


def trust(ca: str | None) -> ssl.SSLContext:
    """For a client that believes `ca` (PEM, one certificate or several). Raises `UnusableCa`."""
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
    ):  # PEM that is none, nothing at all, not ASCII
        raise UnusableCa("it holds no certificate in PEM that can be read") from None
    return context


def _readable(ca: str) -> str:
    trust(ca)
    return ca


CaPem = Annotated[str, Field(max_length=_LIMIT), AfterValidator(_readable)]


def why_untrusted(error: BaseException) -> str | None:
    """What of TLS stands behind a failed connection; None when it failed by something else."""
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
        what = "has expired" if code == _EXPIRED else "is not valid yet"
        # The day and no closer: a reason that is the same is logged once.
        return (
            f"the certificate {what}, or this machine's clock is wrong: it says {datetime.now(UTC):%Y-%m-%d}"
        )
    if code in _SIGNATURE:
        return "the certificate is not signed by a CA that is believed here"
    if code in _OTHER_NAME:
        return f"the certificate is another's: {error.verify_message}"
    return f"the certificate is not good: {error.verify_message}"


def _broken(error: ssl.SSLError) -> str:
    if error.reason in _NO_TLS:
        return "what answers there does not speak TLS"
    if error.reason in _OLD_TLS:
        return "what answers there speaks no TLS that is allowed here, which is 1.2 or newer"
    return f"TLS failed: {error.reason or error}"
