"""The ways to obtain a credential for a login: an API key that is typed on the terminal or read from standard input, or
a token (`device_login`).
"""

import getpass
import os
import sys
from typing import Protocol

from control_plane.cli.failures import WrongUsage


class CredentialSource(Protocol):
    """Source of a new credential, an API key or a token, for the control plane at a URL. Raises a `Failure`."""

    def obtain(self, url: str) -> str: ...


class TypedKey:
    """Credential source that asks for an API key on the terminal, without echo."""

    def obtain(self, url: str) -> str:
        try:
            os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY))
        except OSError:
            raise WrongUsage(
                "there is no terminal to type the API key on", "pass the key on standard input: --with-key"
            ) from None
        return _api_key(getpass.getpass(f"API key for {url}: "))


class KeyFromInput:
    """Credential source that reads an API key from standard input, up to its end."""

    def obtain(self, url: str) -> str:
        return _api_key(sys.stdin.read())


def _api_key(raw: str) -> str:
    key = raw.strip()
    if not key or not key.isascii() or not key.isprintable() or " " in key:
        raise WrongUsage(
            "the given text is not an API key", "an API key is one word of ASCII characters: sp_..."
        )
    return key
