"""TLS verification of the control plane, and explanations of verification errors with advice."""

import ssl
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Final

from control_plane.client.errors import InvalidCa

# X509_V_ERR_* of OpenSSL's x509_vfy.h.
_UNSIGNED: Final = frozenset({2, 7, 18, 19, 20, 21, 24, 27, 30})
_TIMES: Final = {9: "the certificate is not valid yet", 10: "the certificate has expired"}
_OTHER_NAME: Final = frozenset({62, 64})


def trust(url: str, ca: str | None) -> ssl.SSLContext:
    """Return a TLS context (1.2 or later) that trusts only the given CA, or the system's CAs. Raises `InvalidCa`."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # verifies the certificate, and the name in it
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if not url.startswith("https://"):
        return context
    if ca is None:
        context.load_default_certs()
        return context
    try:
        context.load_verify_locations(cadata=ca)
    except (ssl.SSLError, ValueError, TypeError) as error:
        raise InvalidCa(f"the CA for {url} contains no valid PEM certificate") from error
    return context


def why_untrusted(error: BaseException) -> tuple[str, str] | None:
    """Return the TLS error that caused a failed connection, and advice; None if the cause is not TLS."""
    for each in _causes(error):
        if isinstance(each, ssl.SSLCertVerificationError):
            return _unverified(each)
        if isinstance(each, ssl.SSLError):
            return (
                f"TLS failed ({each.reason or each})",
                "check that the server at this URL uses https://",
            )
    return None


def _causes(error: BaseException) -> Iterator[BaseException]:
    found: BaseException | None = error
    while found is not None:
        yield found
        found = found.__cause__ or found.__context__


def _unverified(error: ssl.SSLCertVerificationError) -> tuple[str, str]:
    code = error.verify_code
    if code in _UNSIGNED:
        advice = "specify the CA of the control plane: --ca, SLICEPLANE_CA, or ca in the configuration file, which `./dev up` writes"
        return "the certificate is not signed by a trusted CA", advice
    if code in _TIMES:
        what = _TIMES[code]
        return (
            what,
            f"check this machine's clock, which shows {datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
        )
    if code in _OTHER_NAME:
        return (
            f"the certificate is for another name ({error.verify_message})",
            "check the URL",
        )
    return (
        f"the certificate is not valid ({error.verify_message})",
        "contact the operator of the control plane",
    )
