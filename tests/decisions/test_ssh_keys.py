"""SSH public keys in requests are validated; orders with a key that only an earlier release accepted stay readable."""

import base64
import struct
from typing import Final

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from pydantic import ValidationError

from events.ssh_keys import MAX_LENGTH, ssh_public_key
from events.values import InvalidValue
from tests.agent.orders import apply

_CURVES: Final = {"nistp256": ec.SECP256R1(), "nistp384": ec.SECP384R1(), "nistp521": ec.SECP521R1()}
_PUBLIC: Final = {name: ec.generate_private_key(curve).public_key() for name, curve in _CURVES.items()}
_RAW: Final = Ed25519PrivateKey.generate().public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)


def point(curve: str, form: PublicFormat = PublicFormat.UncompressedPoint) -> bytes:
    return _PUBLIC[curve].public_bytes(Encoding.X962, form)


def line(kind: str, *fields: bytes) -> str:
    """Return an SSH public key line: `kind`, then one base64 text that encodes `kind` and each of `fields` as
    strings of RFC 4251.
    """
    blob = b"".join(struct.pack(">I", len(each)) + each for each in (kind.encode(), *fields))
    return f"{kind} {base64.b64encode(blob).decode()}"


def rsa_line(bits: int, exponent: int = 65537) -> str:
    modulus = 1 << bits - 1 | 1  # nothing verifies that it is a product of two primes
    return line(
        "ssh-rsa", *(b"\0" + each.to_bytes(bits // 8, "big").lstrip(b"\0") for each in (exponent, modulus))
    )


ED25519: Final = line("ssh-ed25519", _RAW)
ACCEPTED: Final = {
    "ed25519": ED25519,
    "rsa 1024": rsa_line(1024),
    "rsa 3072": rsa_line(3072),
    **{name: line(f"ecdsa-sha2-{name}", name.encode(), point(name)) for name in _CURVES},
    "sk ed25519": line("sk-ssh-ed25519@openssh.com", _RAW, b"ssh:"),
    "sk ecdsa": line("sk-ecdsa-sha2-nistp256@openssh.com", b"nistp256", point("nistp256"), b"ssh:laptop"),
}
REFUSED: Final = {
    "no key data": ("ssh-ed25519", "not a key of type ssh-ed25519"),
    "not base64": ("ssh-ed25519 not-base64", "not a key of type ssh-ed25519"),
    "not ASCII": ("ssh-ed25519 é", "not a key of type ssh-ed25519"),
    "characters between base64": (f"{ED25519[:30]}**{ED25519[30:]}", "not a key of type ssh-ed25519"),
    "truncated": (ED25519[:-8], "not a key of type ssh-ed25519"),
    "too long": (line("ssh-ed25519", _RAW, b"more"), "not a key of type ssh-ed25519"),
    "another type": (ED25519.replace("ssh-ed25519", "ssh-rsa"), "not a key of type ssh-rsa"),
    "RSA exponent 1": (rsa_line(2048, exponent=1), "not a key of type ssh-rsa"),
    "compressed point": (
        line("ecdsa-sha2-nistp256", b"nistp256", point("nistp256", PublicFormat.CompressedPoint)),
        "not a key of type ecdsa-sha2-nistp256",
    ),
    "DSA": ("ssh-dss AAAAB3NzaC1kc3M=", "the first word of the key must be one of ecdsa-sha2-nistp256, "),
    "certificate": ("ssh-ed25519-cert-v01@openssh.com AAAA", "the first word of the key must be one of"),
    "options": (f'command="id" {ED25519}', "the first word of the key must be one of"),
    "two lines": (f"{ED25519}\n{ED25519}", "use one printable line"),
    "long comment": (f"{ED25519} {'x' * MAX_LENGTH}", "use one printable line of at most 8192 characters"),
}


@pytest.mark.parametrize("key", ACCEPTED.values(), ids=ACCEPTED)
def test_ssh_key_of_each_type_that_sshd_accepts_is_accepted_with_its_comment(key: str) -> None:
    assert ssh_public_key(key) == key
    assert ssh_public_key(f"  {key.replace(' ', '  ')} me@here: my key ") == f"{key} me@here: my key"


@pytest.mark.parametrize(("key", "reason"), REFUSED.values(), ids=REFUSED)
def test_ssh_key_that_sshd_would_ignore_is_refused_with_the_beginning_of_the_key_and_a_reason(
    key: str, reason: str
) -> None:
    with pytest.raises(InvalidValue, match=f"^'{key[:7]}.* is not a valid SSH public key: ") as refused:
        ssh_public_key(key)
    assert reason in str(refused.value)


def test_order_with_a_truncated_ssh_key_that_an_earlier_release_accepted_stays_readable() -> None:
    recorded = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJUNhMTv recorded by an earlier release"
    order = apply(key=recorded)
    assert type(order).model_validate_json(order.model_dump_json()) == order


def test_order_with_an_ssh_key_of_two_lines_is_refused() -> None:
    with pytest.raises(ValidationError, match="ssh_authorized_keys"):
        apply(key=f"{ED25519}\nruncmd: [reboot]")
