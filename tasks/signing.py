"""Signing and verification of texts between the control plane, its nodes and auditors.

An order is signed each time it is sent, together with the time until which a node may begin it, so that a copy taken
from a queue is worthless later. A node signs only to prove its identity. The sealer signs heads of the ledger's Merkle
tree. A text of one type cannot pass as a text of another type: the signed header contains the type of the text, and a
reader requires the expected type.

The form is JWS compact serialization (RFC 7515) with Ed25519 (RFC 8037, named as in RFC 9864); the id of a key is its
thumbprint (RFC 7638).
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

Type = Literal["order+jws", "session+jws", "head+jws"]
_ALGORITHM: Final = "Ed25519"
_REGISTRY: Final = JWSRegistry(algorithms=[_ALGORITHM])
MAX_SIGNED: Final = 160 * 1024
"""Maximum length of a signed text in characters. Base64 adds a third to a payload; no payload exceeds 80 KiB."""
_MAX_HEADER: Final = 512


class BadSignature(ValueError):
    """A text without a valid signature of a trusted key. Codes: `malformed`, `unknown_key`, `forged`."""

    def __init__(self, code: Literal["malformed", "unknown_key", "forged"], reason: str) -> None:
        super().__init__(reason)
        self.code, self.reason = code, reason


@dataclass(frozen=True)
class Signer:
    """A signer with one Ed25519 private key."""

    key: OKPKey = field(repr=False)

    @classmethod
    def of_pem(cls, pem: bytes) -> "Signer":
        """Return a signer for the content of a PKCS #8 file. Raises `BadSignature` unless it is an Ed25519 private
        key.
        """
        signer = cls(_imported(pem))
        _ = signer._private  # detect another curve or a public key now
        return signer

    @cached_property
    def kid(self) -> str:
        """Id of the signing key, by which readers select its public key."""
        return self.key.thumbprint()

    @cached_property
    def _private(self) -> Ed25519PrivateKey:
        if not isinstance(self.key.raw_value, Ed25519PrivateKey):
            raise BadSignature("malformed", "the key is not an Ed25519 private key")
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
        """The public key in PEM format, which the function `public_key` reads."""
        return self.key.as_pem(private=False).decode("ascii")

    def sign(self, type_: Type, payload: bytes) -> str:
        """Sign the payload and return it as a compact JWS."""
        # Assembled here, because every order is signed each time it is sent, and joserfc's checks of our own header
        # cost a third of the signature.
        text = self._headers[type_] + b"." + _segment(payload)
        return (text + b"." + _segment(self._private.sign(text))).decode("ascii")


def verify(text: str, type_: Type, keys: Mapping[str, OKPKey]) -> bytes:
    """Return the payload of a compact JWS of this type that is signed with one of `keys` (by key id).

    Raises `BadSignature`.
    """
    # Check the length before parsing: a deeply nested header would exceed the parser's recursion limit.
    if len(text) > MAX_SIGNED or not 0 < text.find(".") <= _MAX_HEADER:
        raise BadSignature(
            "malformed", f"the signed text is not a compact JWS of at most {MAX_SIGNED} characters"
        )
    try:
        found = jws.extract_compact(text.encode("ascii"))
        # Exactly these fields: others, such as `crit` and `jwk`, have no meaning here and must have no effect.
        match found.headers():
            case {"alg": "Ed25519", "kid": str(kid), "typ": str(typ), **rest} if typ == type_ and not rest:
                pass
            case _:
                raise BadSignature(
                    "malformed",
                    f"the header of the signed text must have algorithm Ed25519, type {type_}, and a key id",
                )
        if kid not in keys:
            raise BadSignature(
                "unknown_key",
                f"the signing key {kid[:64]!r} is not one of the trusted keys",
            )
        if not jws.validate_compact(found, keys[kid], registry=_REGISTRY):
            raise BadSignature("forged", "the signature does not match the signed text")
    except (JoseError, UnicodeEncodeError, ValueError) as error:
        if isinstance(error, BadSignature):
            raise
        code: Literal["forged", "malformed"] = (
            "forged" if isinstance(error, BadSignatureError) else "malformed"
        )
        raise BadSignature(code, f"the signed text is not a valid compact JWS: {error}") from None
    return found.payload


def payload_of(verified: str) -> bytes:
    """Return the payload of a compact JWS, which the caller has already verified."""
    payload = verified.split(".")[1]
    return urlsafe_b64decode(payload + "=" * (-len(payload) % 4))


def public_key(pem: str) -> OKPKey:
    """Return the Ed25519 public key in a PEM text. Raises `BadSignature` for any other text, a private key included."""
    key = _imported(pem.encode())
    if not isinstance(key.raw_value, Ed25519PublicKey):
        raise BadSignature("malformed", "the key is not an Ed25519 public key")
    return key


def new_private_key() -> bytes:
    """Return a new Ed25519 key as the content of a PKCS #8 file (PEM, not encrypted)."""
    key = Ed25519PrivateKey.generate()
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def _segment(content: bytes) -> bytes:
    return urlsafe_b64encode(content).rstrip(b"=")


def _imported(pem: bytes) -> OKPKey:
    try:
        return OKPKey.import_key(pem)
    except (JoseError, ValueError) as error:
        raise BadSignature("malformed", f"the key is not an Ed25519 key: {error}") from None
