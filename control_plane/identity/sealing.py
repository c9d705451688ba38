"""Signing of orders, and the keys used for it; and the public keys that verify heads of the ledger.

One key signs; nodes trust it and the retired keys. A node receives the trusted keys when it enrols and at each renewal
of its session, so a key change never causes a valid order to be refused: a node that gets an order signed with an
unknown key first renews its session. It receives the public keys of the sealer in the same way.
"""

import re
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Final

from control_plane.settings import Settings
from tasks.sealed import seal
from tasks.signing import BadSignature, Signer, public_key

_PEM: Final = re.compile(r"-----BEGIN [A-Z ]+-----.+?-----END [A-Z ]+-----", re.DOTALL)


class NoSigningKey(Exception):
    """The key that signs orders or heads of the ledger is missing or unusable. The message is a sentence for the
    operator.
    """


@dataclass(frozen=True, slots=True)
class OrderKeys:
    """The signing key, and the public keys (PEM) that nodes are to trust, beginning with that of the signing key.

    `sealing` are the public keys (PEM) with which nodes verify heads of the ledger.
    """

    signer: Signer
    trusted: tuple[str, ...]
    sealing: tuple[str, ...] = ()

    def seal(self, order: str, expires_at: datetime, head: str | None) -> str:
        """Return the order's JSON as a signed text that a node may begin to apply until `expires_at`, with the newest
        head of the ledger.
        """
        return seal(self.signer, order, expires_at, head)


def order_keys(settings: Settings) -> OrderKeys:
    """Read the keys that the settings name. Raises `NoSigningKey`."""
    path = settings.signing_key_file
    if path is None:
        raise NoSigningKey(
            "SLICEPLANE_SIGNING_KEY_FILE is not set: name a file with an Ed25519 private key (PKCS #8, PEM)"
        )
    signer = read_signer(path)
    others = () if settings.retired_keys is None else _folder(settings.retired_keys)
    file = settings.sealing_public_keys_file
    sealing = () if file is None else _public_keys(file)
    return OrderKeys(signer, tuple(dict.fromkeys((signer.public, *others))), sealing)


def _public_keys(file: Path) -> tuple[str, ...]:
    """Return the public keys in a file with one PEM text after the other."""
    try:
        found = _PEM.findall(file.read_text())
        if not found:
            raise NoSigningKey(f"the public keys of the sealer {file} cannot be used: there is no PEM text")
        return tuple(public_key(pem).as_pem(private=False).decode("ascii") for pem in found)
    except (OSError, UnicodeDecodeError) as error:
        raise NoSigningKey(f"the public keys of the sealer {file} cannot be read: {error}") from error
    except BadSignature as bad:
        raise NoSigningKey(f"the public keys of the sealer {file} cannot be used: {bad.reason}") from bad


def _folder(path: Path) -> list[str]:
    if not path.is_dir():
        raise NoSigningKey(
            f"the folder of retired keys {path} does not exist; create it or correct the setting"
        )
    return [_public(found) for found in sorted(path.glob("*.pem"))]


def read_signer(path: Path) -> Signer:
    """Return the signer with the Ed25519 private key in a file (PKCS #8, PEM). Raises `NoSigningKey`."""
    try:
        return Signer.of_pem(path.read_bytes())
    except OSError as error:
        raise NoSigningKey(f"the signing key {path} cannot be read: {error.strerror}") from error
    except BadSignature as bad:
        raise NoSigningKey(f"the signing key {path} cannot be used: {bad.reason}") from bad


def _public(path: Path) -> str:
    try:
        return str(public_key(path.read_text()).as_pem(private=False).decode("ascii"))
    except (OSError, UnicodeDecodeError) as error:
        raise NoSigningKey(f"the retired key {path} cannot be read: {error}") from error
    except BadSignature as bad:
        raise NoSigningKey(f"the retired key {path} cannot be used: {bad.reason}") from bad
