"""The keys that orders are signed with, and the signing.

One key signs, and nodes trust it and the others that they were told of. A node learns of keys when it enrols and at
each renewal of its session, so keys change without a moment in which an honest order is refused: a node that meets a
key which it does not know asks for a renewal first.
"""

from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from control_plane.settings import Settings
from tasks.sealed import seal
from tasks.signing import BadSignature, Signer, public_key


class NoSigningKey(Exception):
    """There is no key to sign orders with; the message is a sentence for whoever starts the program."""


@dataclass(frozen=True, slots=True)
class OrderKeys:
    """The key that signs, and the public keys (PEM) that nodes are to trust, the signing one first."""

    signer: Signer
    trusted: tuple[str, ...]

    def seal(self, order: str, expires_at: datetime) -> str:
        """The order's JSON as a signed text, to be begun until `expires_at`."""
        return seal(self.signer, order, expires_at)


def order_keys(settings: Settings) -> OrderKeys:
    """Read the keys of the settings. Raises `NoSigningKey`."""
    path = settings.signing_key_file
    if path is None:
        raise NoSigningKey(
            "SLICEPLANE_SIGNING_KEY_FILE is not set: name a file with an Ed25519 private key (PKCS #8, PEM)"
        )
    signer = _signer(path)
    others = () if settings.retired_keys is None else _folder(settings.retired_keys)
    return OrderKeys(signer, tuple(dict.fromkeys((signer.public, *others))))


def _folder(path: Path) -> list[str]:
    if not path.is_dir():
        raise NoSigningKey(f"there is no folder of retired keys {path}")
    return [_public(found) for found in sorted(path.glob("*.pem"))]


def _signer(path: Path) -> Signer:
    try:
        return Signer.of_pem(path.read_bytes())
    except OSError as error:
        raise NoSigningKey(f"the signing key {path} cannot be read: {error.strerror}") from error
    except BadSignature as bad:
        raise NoSigningKey(f"the signing key {path} cannot be used: {bad.why}") from bad


def _public(path: Path) -> str:
    try:
        return str(public_key(path.read_text()).as_pem(private=False).decode("ascii"))
    except (OSError, UnicodeDecodeError) as error:
        raise NoSigningKey(f"the retired key {path} cannot be read: {error}") from error
    except BadSignature as bad:
        raise NoSigningKey(f"the retired key {path} cannot be used: {bad.why}") from bad
