"""Whom to believe behind https://, and why somebody was not believed, in one sentence and with what to do about it."""

import ssl
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Final

from control_plane.cli.failures import WrongUsage

# X509_V_ERR_* of OpenSSL's x509_vfy.h.
_UNSIGNED: Final = frozenset({2, 7, 18, 19, 20, 21, 24, 27, 30})
_TIMES: Final = {9: "is not valid yet", 10: "has expired"}
_OTHER_NAME: Final = frozenset({62, 64})


def trust(url: str, ca: str | None) -> ssl.SSLContext:
    """TLS 1.2 at least; a CA that was given counts alone, and the system's without one. Raises `WrongUsage`."""
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
        raise WrongUsage(
            f"the CA given for {url} holds no certificate in PEM that can be read",
            "it comes from --ca, SLICEPLANE_CA or the configuration file",
        ) from error
    return context


def why_untrusted(error: BaseException) -> tuple[str, str] | None:
    """What of TLS stands behind a failed connection, and advice; None when it failed by something else."""
    for each in _causes(error):
        if isinstance(each, ssl.SSLCertVerificationError):
            return _unverified(each)
        if isinstance(each, ssl.SSLError):
            return (
                f"TLS failed ({each.reason or each})",
                "is it https:// that is spoken there?",
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
        known = (
            "name its CA: --ca, SLICEPLANE_CA, or ca in the configuration file; `./dev up` writes it there"
        )
        return "the certificate is not signed by a CA that is known here", known
    if code in _TIMES:
        what = f"the certificate {_TIMES[code]}"
        return (
            what,
            f"by this machine's clock it is {datetime.now(UTC):%Y-%m-%d %H:%M} UTC: is that right?",
        )
    if code in _OTHER_NAME:
        return (
            f"the certificate is another's ({error.verify_message})",
            "look at the URL",
        )
    return (
        f"the certificate is not good ({error.verify_message})",
        "ask who runs the control plane",
    )
