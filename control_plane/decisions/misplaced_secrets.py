"""Recognition of secrets in texts that must not contain any: parts of a request that are shown, logged or recorded.

A caller may send a secret to the wrong place, such as an API key in a path. The ledger is never changed, and logs are
copied to other systems, so such a request is refused before anything of it is recorded, and messages and log lines omit
the secret.
"""

import re
from typing import Final
from urllib.parse import unquote

_BEGINNINGS: Final = ("sp_", "ss_", "enrol_", "eyJ", "-----BEGIN ")
# A JWT is searched only from the beginning of its first part, with all characters that stand before it: a search from
# each "eyJ" to the end of the part would need a time that grows with the square of the length of the text.
_SECRET: Final = re.compile(
    r"(?:sp|ss|enrol)_[A-Za-z0-9_-]{32,}"  # an API key, the secret of a session, an enrolment token
    r"|(?<![A-Za-z0-9_-])(?=[A-Za-z0-9_-]*eyJ[A-Za-z0-9_-]{8})"
    r"[A-Za-z0-9_-]+\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}"  # a signed JWT (RFC 7515, compact serialization)
    r"|-----BEGIN [A-Z0-9 ]*PRIVATE KEY-----.*",  # a private key in PEM, with all that follows
    re.DOTALL,
)
_DECODINGS: Final = 3
"""Maximum number of times that a path is decoded: each decoding takes time in proportion to the length of the path."""
OMITTED: Final = "[secret]"
"""Text that takes the place of an omitted secret."""


def has_secret(text: str) -> bool:
    """Return whether the text contains an API key, the secret of a session, an enrolment token, a signed JWT or a
    private key.
    """
    return _may_have_one(text) and _SECRET.search(text) is not None


def without_secrets(text: str) -> str:
    """Return the text with each secret replaced by `OMITTED`."""
    return _SECRET.sub(OMITTED, text) if _may_have_one(text) else text


def without_encoded_secrets(path: str) -> str:
    """Return the path of a URL with each secret replaced by `OMITTED`, also if it is percent-encoded, once or several
    times. A path with an encoded secret is returned decoded.
    """
    decoded = path
    for _ in range(_DECODINGS):
        if "%" not in decoded:
            break
        decoded = unquote(decoded)
    return without_secrets(decoded if has_secret(decoded) else path)


def _may_have_one(text: str) -> bool:
    # A search for fixed texts is a hundred times faster than one for the pattern, and nearly every text has none.
    return any(each in text for each in _BEGINNINGS)
