"""The ways to obtain the credential of a context: typed on the terminal, or read from standard input.

Another way to log in, such as the device flow of an identity provider, is one more `CredentialSource`.
"""

import getpass
import os
import sys
from typing import Protocol

from control_plane.cli.contexts import ApiKey, Credential
from control_plane.cli.failures import WrongUsage


class CredentialSource(Protocol):
    """A way to obtain a credential for the control plane at a URL. Raises a `Failure`."""

    def obtain(self, url: str) -> Credential: ...


class TypedKey:
    """Ask for an API key on the terminal, without echo."""

    def obtain(self, url: str) -> Credential:
        try:
            os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY))
        except OSError:
            raise WrongUsage(
                "there is no terminal to type the API key on", "pass the key on standard input: --with-key"
            ) from None
        return _api_key(getpass.getpass(f"API key for {url}: "))


class KeyFromInput:
    """Read an API key from standard input, up to its end."""

    def obtain(self, url: str) -> Credential:
        return _api_key(sys.stdin.read())


def _api_key(raw: str) -> Credential:
    key = raw.strip()
    if not key or not key.isascii() or not key.isprintable() or " " in key:
        raise WrongUsage("this is not an API key", "an API key is one word of ASCII characters: sp_...")
    return ApiKey(key)
