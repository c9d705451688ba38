"""A text is believed when a key that we trust signed just that, as just that type (P20)."""

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
STRANGER = Signer.of_pem(new_private_key())
KEYS = {SIGNER.kid: public_key(SIGNER.public)}
HEADER = {"alg": "Ed25519", "kid": SIGNER.kid, "typ": "order+jws"}
PAYLOAD = b'{"wants":"a slice"}'
ALPHABET = f"{string.ascii_letters}{string.digits}-_"
GOOD = SIGNER.sign("order+jws", PAYLOAD)


def segment(content: bytes) -> str:
    return base64.urlsafe_b64encode(content).rstrip(b"=").decode()


def signed(header: dict[str, Any], payload: bytes = PAYLOAD, signer: Signer = SIGNER) -> str:
    """A text with a true signature over whatever header."""
    head = f"{segment(json.dumps(header).encode())}.{segment(payload)}"
    key = load_pem_private_key(signer.key.as_pem(private=True), None)
    assert isinstance(key, Ed25519PrivateKey)
    return f"{head}.{segment(key.sign(head.encode()))}"


def code_of(text: str, type_: Any = "order+jws") -> str:
    with pytest.raises(BadSignature) as bad:
        verify(text, type_, KEYS)
    return bad.value.code


def test_what_was_signed_is_read_back() -> None:
    assert verify(GOOD, "order+jws", KEYS) == PAYLOAD
    assert verify(signed(HEADER), "order+jws", KEYS) == PAYLOAD


@pytest.mark.parametrize("part", [0, 1, 2], ids=["header", "payload", "signature"])
def test_a_text_with_any_one_character_changed_is_refused(part: int) -> None:
    parts = GOOD.split(".")
    for place in range(len(parts[part])):
        # Of a last character some bits mean nothing: another one may stand for the same bytes.
        is_last = place == len(parts[part]) - 1
        for other in ALPHABET if is_last else "AQz":
            if parts[part][place] != other:
                changed = [*parts]
                changed[part] = parts[part][:place] + other + parts[part][place + 1 :]
                assert code_of(".".join(changed)) in {"forged", "malformed", "unknown_key"}


def test_a_strangers_signature_is_of_an_unknown_key_and_under_our_name_it_is_forged() -> None:
    assert code_of(STRANGER.sign("order+jws", PAYLOAD)) == "unknown_key"
    assert code_of(signed(HEADER, signer=STRANGER)) == "forged"


def test_the_signature_of_one_text_does_not_pass_for_another() -> None:
    head, _, signature = GOOD.split(".")
    other = SIGNER.sign("order+jws", b"{}").split(".")[1]
    assert code_of(f"{head}.{other}.{signature}") == "forged"


def test_one_type_never_passes_for_the_other() -> None:
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
    ids=range(14),
)
def test_a_header_that_says_anything_else_has_no_effect_though_it_is_truly_signed(
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
    ids=range(16),
)
def test_what_is_no_signed_text_is_malformed_however_it_is_built(text: str) -> None:
    assert code_of(text) in {"malformed", "forged"}


def test_an_unsecured_text_is_refused() -> None:
    head = segment(json.dumps({"alg": "none", "kid": SIGNER.kid, "typ": "order+jws"}).encode())
    for signature in ("", segment(b"\0" * 64)):
        assert code_of(f"{head}.{segment(PAYLOAD)}.{signature}") == "malformed"


@given(st.text(max_size=400))
def test_no_text_ends_in_anything_but_a_refusal(text: str) -> None:
    code_of(text)


@given(st.lists(st.binary(max_size=200), min_size=1, max_size=5))
def test_no_bytes_in_the_right_form_end_in_anything_but_a_refusal(parts: list[bytes]) -> None:
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
def test_no_header_ends_in_anything_but_a_refusal(header: Any) -> None:
    code_of(f"{segment(json.dumps(header).encode())}.{segment(PAYLOAD)}.{GOOD.split('.')[2]}")


def pem(key: Any) -> bytes:
    made: bytes = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return made


def public_pem(key: Any) -> str:
    made: bytes = key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    return made.decode()


OTHERS: dict[str, Callable[[], Any]] = {
    "x25519": x25519.X25519PrivateKey.generate,
    "ed448": ed448.Ed448PrivateKey.generate,
    "rsa": lambda: rsa.generate_private_key(65537, 2048),
}


@pytest.mark.parametrize("kind", OTHERS)
def test_a_key_of_another_kind_is_refused(kind: str) -> None:
    other = OTHERS[kind]()
    with pytest.raises(BadSignature):
        Signer.of_pem(pem(other))
    with pytest.raises(BadSignature):
        public_key(public_pem(other))


@pytest.mark.parametrize(
    "given_", ["", "no key", "-----BEGIN PUBLIC KEY-----\n-----END PUBLIC KEY-----\n", "é"]
)
def test_what_is_no_key_is_refused(given_: str) -> None:
    with pytest.raises(BadSignature):
        public_key(given_)
    with pytest.raises(BadSignature):
        Signer.of_pem(given_.encode())


def test_a_private_key_is_not_taken_for_a_public_one_nor_the_reverse() -> None:
    with pytest.raises(BadSignature):
        public_key(new_private_key().decode())
    with pytest.raises(BadSignature):
        Signer.of_pem(SIGNER.public.encode())


def test_a_signer_shows_its_key_to_nobody() -> None:
    assert "PRIVATE" not in repr(SIGNER) + str(SIGNER) + SIGNER.public
