"""Tests of signed tasks: a text is accepted only if a trusted key signed exactly this text for exactly this
message type (P20).
"""

import base64
import json
import string
from collections.abc import Callable
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ed448, rsa, x25519
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)
from hypothesis import given
from hypothesis import strategies as st

from tasks.signing import MAX_SIGNED, BadSignature, Signer, new_private_key, public_key, verify

SIGNER = Signer.of_pem(new_private_key())
UNTRUSTED = Signer.of_pem(new_private_key())
KEYS = {SIGNER.kid: public_key(SIGNER.public)}
HEADER = {"alg": "Ed25519", "kid": SIGNER.kid, "typ": "order+jws"}
PAYLOAD = b'{"wants":"a slice"}'
ALPHABET = f"{string.ascii_letters}{string.digits}-_"
GOOD = SIGNER.sign("order+jws", PAYLOAD)


def segment(content: bytes) -> str:
    return base64.urlsafe_b64encode(content).rstrip(b"=").decode()


def signed(header: dict[str, Any], payload: bytes = PAYLOAD, signer: Signer = SIGNER) -> str:
    """Return a signed text with an arbitrary header and a valid signature."""
    head = f"{segment(json.dumps(header).encode())}.{segment(payload)}"
    key = load_pem_private_key(signer.key.as_pem(private=True), None)
    assert isinstance(key, Ed25519PrivateKey)
    return f"{head}.{segment(key.sign(head.encode()))}"


def code_of(text: str, type_: Any = "order+jws") -> str:
    with pytest.raises(BadSignature) as bad:
        verify(text, type_, KEYS)
    return bad.value.code


def test_text_signed_by_a_trusted_key_is_verified_and_its_payload_returned() -> None:
    assert verify(GOOD, "order+jws", KEYS) == PAYLOAD
    assert verify(signed(HEADER), "order+jws", KEYS) == PAYLOAD


@pytest.mark.parametrize("part", [0, 1, 2], ids=["header", "payload", "signature"])
def test_signed_text_with_any_character_changed_is_rejected(part: int) -> None:
    parts = GOOD.split(".")
    for position in range(len(parts[part])):
        # Some bits of the last character are unused: another character may encode the same bytes.
        is_last = position == len(parts[part]) - 1
        for other in ALPHABET if is_last else "AQz":
            if parts[part][position] != other:
                changed = [*parts]
                changed[part] = parts[part][:position] + other + parts[part][position + 1 :]
                assert code_of(".".join(changed)) in {"forged", "malformed", "unknown_key"}


def test_signature_by_an_untrusted_key_is_rejected_as_unknown_or_as_forged_under_a_trusted_key_id() -> None:
    assert code_of(UNTRUSTED.sign("order+jws", PAYLOAD)) == "unknown_key"
    assert code_of(signed(HEADER, signer=UNTRUSTED)) == "forged"


def test_signature_of_one_payload_is_rejected_as_forged_for_another_payload() -> None:
    head, _, signature = GOOD.split(".")
    other = SIGNER.sign("order+jws", b"{}").split(".")[1]
    assert code_of(f"{head}.{other}.{signature}") == "forged"


def test_text_signed_as_one_message_type_is_rejected_as_malformed_for_another_message_type() -> None:
    assert code_of(SIGNER.sign("session+jws", PAYLOAD)) == "malformed"
    assert code_of(GOOD, "session+jws") == "malformed"


@pytest.mark.parametrize(
    "header",
    [
        {**HEADER, "alg": "none"},
        {**HEADER, "alg": "EdDSA"},
        {**HEADER, "alg": "HS256"},
        {**HEADER, "crit": ["exp"], "exp": 1},
        {**HEADER, "b64": False, "crit": ["b64"]},
        {**HEADER, "jwk": json.loads(json.dumps(SIGNER.key.as_dict(private=False)))},
        {**HEADER, "jku": "http://127.0.0.1/keys"},
        {**HEADER, "x5c": []},
        {**HEADER, "kid": 7},
        {**HEADER, "kid": None},
        {**HEADER, "kid": ["a"]},
        {"alg": "Ed25519", "typ": "order+jws"},
        {"alg": "Ed25519", "kid": SIGNER.kid},
        {},
    ],
    ids=[
        "alg-none",
        "alg-eddsa",
        "alg-hs256",
        "crit-exp",
        "unencoded-payload",
        "jwk",
        "jku",
        "x5c",
        "kid-number",
        "kid-null",
        "kid-list",
        "no-kid",
        "no-typ",
        "empty",
    ],
)
def test_validly_signed_text_with_an_unexpected_header_is_rejected_as_malformed(
    header: dict[str, Any],
) -> None:
    assert code_of(signed(header)) == "malformed"


@pytest.mark.parametrize(
    "text",
    [
        "",
        ".",
        "..",
        "...",
        "a.b.c",
        "é.é.é",
        GOOD + ".",
        GOOD + "\n",
        f"{segment(b'[' * 300)}..",
        f"{segment(b'{' * 300)}..",
        "A" * 600 + "." + GOOD,
        "[" * 100_000,
        GOOD + "A" * MAX_SIGNED,
        f"{segment(b'null')}.e30.e30",
        f"{segment(bytes(range(256)))}.e30.e30",
        json.dumps({"payload": "e30", "signatures": []}),
    ],
    ids=[
        "empty",
        "one-dot",
        "two-dots",
        "three-dots",
        "short-segments",
        "non-ascii",
        "trailing-dot",
        "trailing-newline",
        "nested-lists",
        "nested-objects",
        "long-first-segment",
        "100-kb-of-brackets",
        "too-long",
        "null-header",
        "binary-header",
        "json-serialization",
    ],
)
def test_text_that_is_not_in_the_signed_format_is_rejected(text: str) -> None:
    assert code_of(text) in {"malformed", "forged"}


def test_signed_text_with_algorithm_none_is_rejected_as_malformed() -> None:
    head = segment(json.dumps({"alg": "none", "kid": SIGNER.kid, "typ": "order+jws"}).encode())
    for signature in ("", segment(b"\0" * 64)):
        assert code_of(f"{head}.{segment(PAYLOAD)}.{signature}") == "malformed"


@given(st.text(max_size=400))
def test_arbitrary_text_in_place_of_a_signed_text_is_rejected_with_bad_signature(text: str) -> None:
    code_of(text)


@given(st.lists(st.binary(max_size=200), min_size=1, max_size=5))
def test_signed_text_with_arbitrary_bytes_in_its_segments_is_rejected_with_bad_signature(
    parts: list[bytes],
) -> None:
    code_of(".".join(map(segment, parts)))


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=20),
        lambda deeper: (
            st.lists(deeper, max_size=3) | st.dictionaries(st.text(max_size=8), deeper, max_size=3)
        ),
        max_leaves=8,
    )
)
def test_signed_text_with_an_arbitrary_json_header_is_rejected_with_bad_signature(header: Any) -> None:
    code_of(f"{segment(json.dumps(header).encode())}.{segment(PAYLOAD)}.{GOOD.split('.')[2]}")


def pem(key: Any) -> bytes:
    made: bytes = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return made


def public_pem(key: Any) -> str:
    made: bytes = key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    return made.decode()


UNSUPPORTED: dict[str, Callable[[], Any]] = {
    "x25519": x25519.X25519PrivateKey.generate,
    "ed448": ed448.Ed448PrivateKey.generate,
    "rsa": lambda: rsa.generate_private_key(65537, 2048),
}


@pytest.mark.parametrize("kind", UNSUPPORTED)
def test_signing_key_of_an_unsupported_algorithm_is_rejected(kind: str) -> None:
    other = UNSUPPORTED[kind]()
    with pytest.raises(BadSignature):
        Signer.of_pem(pem(other))
    with pytest.raises(BadSignature):
        public_key(public_pem(other))


@pytest.mark.parametrize(
    "text", ["", "not a key", "-----BEGIN PUBLIC KEY-----\n-----END PUBLIC KEY-----\n", "é"]
)
def test_text_that_is_not_a_pem_key_is_rejected_as_a_signing_key(text: str) -> None:
    with pytest.raises(BadSignature):
        public_key(text)
    with pytest.raises(BadSignature):
        Signer.of_pem(text.encode())


def test_private_key_in_place_of_a_public_key_and_the_reverse_are_rejected() -> None:
    with pytest.raises(BadSignature):
        public_key(new_private_key().decode())
    with pytest.raises(BadSignature):
        Signer.of_pem(SIGNER.public.encode())


def test_repr_str_and_public_key_of_a_signer_do_not_contain_its_private_key() -> None:
    assert "PRIVATE" not in repr(SIGNER) + str(SIGNER) + SIGNER.public
