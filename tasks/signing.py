"""Signed texts between the control plane and its nodes.

An order is signed each time it is sent, together with the moment after which no node may begin it, so that a copy of a
queue is worth nothing later. A node signs only to prove who it is. The two kinds never pass for each other: the header
names the type, and a reader asks for the one it wants.

Form: JWS compact serialization (RFC 7515) with Ed25519 (RFC 8037, named as in RFC 9864); a key's id is its thumbprint
(RFC 7638).
"""

from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final, Literal, get_args

import msgspec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from joserfc import jws
from joserfc.errors import BadSignatureError, JoseError
from joserfc.jwk import OKPKey
from joserfc.jws import JWSRegistry

Type = Literal["order+jws", "session+jws"]
_ALGORITHM: Final = "Ed25519"
_REGISTRY: Final = JWSRegistry(algorithms=[_ALGORITHM])
MAX_SIGNED: Final = 160 * 1024
"""Characters. A payload grows by a third (base64); nothing that we sign is longer than 80 KiB."""
_MAX_HEADER: Final = 512


class BadSignature(ValueError):
    """A text that nobody we trust signed. Codes: `malformed`, `unknown_key`, `forged`."""

    def __init__(self, code: Literal["malformed", "unknown_key", "forged"], why: str) -> None:
        super().__init__(why)
        self.code, self.why = code, why


@dataclass(frozen=True)
class Signer:
    """Signs with one private key."""

    key: OKPKey = field(repr=False)

    @classmethod
    def of_pem(cls, pem: bytes) -> "Signer":
        """From a PKCS #8 file's content. Raises `BadSignature` for anything but an Ed25519 private key."""
        signer = cls(_imported(pem))
        _ = signer._private  # another curve, or only the public half, is found out now
        return signer

    @cached_property
    def kid(self) -> str:
        """The name under which readers know the key."""
        return self.key.thumbprint()

    @cached_property
    def _private(self) -> Ed25519PrivateKey:
        if not isinstance(self.key.raw_value, Ed25519PrivateKey):
            raise BadSignature("malformed", "it is no Ed25519 private key")
        return self.key.raw_value

    @cached_property
    def _headers(self) -> Mapping[Type, bytes]:
        headers: dict[Type, bytes] = {}
        for type_ in get_args(Type):
            header = {"alg": _ALGORITHM, "kid": self.kid, "typ": type_}
            headers[type_] = _segment(msgspec.json.encode(header))
        return headers

    @cached_property
    def public(self) -> str:
        """The public key, as `public_key` reads it: PEM."""
        return self.key.as_pem(private=False).decode("ascii")

    def sign(self, type_: Type, payload: bytes) -> str:
        """The payload as a compact JWS."""
        # Put together here: every order is signed at each sending, and joserfc's checks of a header that is our own
        # cost a third of the signature.
        text = self._headers[type_] + b"." + _segment(payload)
        return (text + b"." + _segment(self._private.sign(text))).decode("ascii")


def verify(text: str, type_: Type, keys: Mapping[str, OKPKey]) -> bytes:
    """The payload of a compact JWS of this type, signed by one of `keys` (by key id). Raises `BadSignature`."""
    # Bounded before it is parsed: a deep header would end the parser by its recursion, and a long text is never ours.
    if len(text) > MAX_SIGNED or not 0 < text.find(".") <= _MAX_HEADER:
        raise BadSignature("malformed", f"it is no signed text of at most {MAX_SIGNED} characters")
    try:
        found = jws.extract_compact(text.encode("ascii"))
        # Exactly these: `crit`, `jwk`, `alg: none` and the like have no meaning here, and so no effect.
        match found.headers():
            case {"alg": "Ed25519", "kid": str(kid), "typ": str(typ), **rest} if typ == type_ and not rest:
                pass
            case _:
                raise BadSignature("malformed", f"its header is not one of a {type_}")
        if kid not in keys:
            raise BadSignature("unknown_key", f"its key {kid[:64]!r} is not known here")
        if not jws.validate_compact(found, keys[kid], registry=_REGISTRY):
            raise BadSignature("forged", "its signature does not fit its content")
    except (JoseError, UnicodeEncodeError, ValueError) as error:
        if isinstance(error, BadSignature):
            raise
        code: Literal["forged", "malformed"] = (
            "forged" if isinstance(error, BadSignatureError) else "malformed"
        )
        raise BadSignature(code, f"it is no signed text: {error}") from None
    return found.payload


def payload_of(verified: str) -> bytes:
    """The payload of a compact JWS that was verified before."""
    payload = verified.split(".")[1]
    return urlsafe_b64decode(payload + "=" * (-len(payload) % 4))


def public_key(pem: str) -> OKPKey:
    """The key that `Signer.public` wrote. Raises `BadSignature`, for a private key too."""
    key = _imported(pem.encode())
    if not isinstance(key.raw_value, Ed25519PublicKey):
        raise BadSignature("malformed", "it is no Ed25519 public key")
    return key


def new_private_key() -> bytes:
    """A fresh Ed25519 key as the content of a PKCS #8 file (PEM, not encrypted)."""
    key = Ed25519PrivateKey.generate()
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def _segment(content: bytes) -> bytes:
    return urlsafe_b64encode(content).rstrip(b"=")


def _imported(pem: bytes) -> OKPKey:
    try:
        return OKPKey.import_key(pem)
    except (JoseError, ValueError) as error:
        raise BadSignature("malformed", f"it is no Ed25519 key: {error}") from None
