"""Real OpenID provider for tests: the npm package `oidc-provider` on Node.js, on a loopback port.

Tests own the private keys of the provider. They can therefore sign any claims as the provider, and replace its keys
while it runs.
"""

import json
import re
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Final

import httpx
import pytest
from joserfc.jwk import ECKey, Key, OKPKey, RSAKey
from joserfc.jws import JWSRegistry
from joserfc.util import json_b64encode, urlsafe_b64encode

from deploy.setup.npm import node_of
from tests.plugins.requirements import missing_server
from tests.servers.lab import kept_folder
from tests.servers.npm_packages import NotInstalled, ensure_installed
from tests.servers.plane import TLS_CONTEXT, free_port
from tests.waiting import until

AUDIENCE: Final = "https://slices.example"
CLIENT: Final = "sliceplane"
"""The public client with which users sign in."""
_FILES: Final = Path(__file__).with_name("oidc")
_PROGRAM: Final = _FILES / "provider.mjs"
_ACTION: Final = re.compile(r'action="([^"]+)"')
_HIDDEN: Final = re.compile(r'<input type="hidden" name="([^"]+)" value="([^"]*)"')


def new_keys(generation: str) -> dict[str, Key]:
    """Return a new private key for each algorithm that tests use; the key ids contain `generation`."""
    return {
        "RS256": RSAKey.generate_key(2048, {"kid": f"rsa-{generation}", "use": "sig"}),
        "ES256": ECKey.generate_key("P-256", {"kid": f"ec-{generation}", "use": "sig"}),
        "EdDSA": OKPKey.generate_key("Ed25519", {"kid": f"ed-{generation}", "use": "sig"}),
    }


def compact(header: dict[str, Any], payload: bytes, algorithm: str, key: Any) -> str:
    """Return a signed token (RFC 7515, section 7.1) with exactly this header; `algorithm` decides how it is signed."""
    signed = json_b64encode(header) + b"." + urlsafe_b64encode(payload)
    signature = JWSRegistry.algorithms[algorithm].sign(signed, key)
    return (signed + b"." + urlsafe_b64encode(signature)).decode()


@dataclass
class Provider:
    """A running OpenID provider. `keys` are its private keys by algorithm."""

    issuer: str
    keys: dict[str, Key]
    _commands: IO[str]
    _answers: IO[str]
    verify: Any = field(default=TLS_CONTEXT, repr=False)

    def order(self, **command: object) -> None:
        """Send a command to the provider's process and wait until the process has carried it out."""
        self._commands.write(json.dumps(command) + "\n")
        self._commands.flush()
        assert self._answers.readline() == "done\n", "the provider does not answer"

    def use_keys(self, keys: dict[str, Key]) -> None:
        """Replace the keys of the provider: later tokens are signed with the new ones, and only these are published."""
        self.keys = keys
        self.order(keys=[key.as_dict(private=True) for key in keys.values()])

    def close(self) -> None:
        """Let the provider refuse connections, as if it were down."""
        self.order(listen=False)

    def open(self) -> None:
        self.order(listen=True)

    def workload_token(self, algorithm: str = "RS256") -> str:
        """Return the access token of a workload (RFC 6749, section 4.4)."""
        client = f"ci-{algorithm.lower()}"
        with self._client() as http:
            answer = http.post(
                "/token",
                auth=(client, f"secret-of-{client}"),
                data={"grant_type": "client_credentials", "scope": "slices"},
            )
        assert answer.is_success, answer.text
        return str(answer.json()["access_token"])

    def user_token(self, user: str) -> str:
        """Return the access token of a user, requested with the device flow (RFC 8628)."""
        with self._client() as device:
            begun = device.post("/device/auth", data={"client_id": CLIENT, "scope": "openid slices"}).json()
            self.sign_in(begun["verification_uri_complete"], user)
            answer = device.post(
                "/token",
                data={
                    "client_id": CLIENT,
                    "grant_type": "urn:ietf:params:oauth:grant-type:device_code",
                    "device_code": begun["device_code"],
                },
            )
        assert answer.is_success, answer.text
        return str(answer.json()["access_token"])

    def sign_in(self, url: str, user: str) -> None:
        """Confirm the code, sign in and consent, as a user does in a browser."""
        with self._client() as browser:
            page = browser.get(url)
            while forms := _ACTION.findall(page.text):
                fields = dict(_HIDDEN.findall(page.text))
                page = browser.post(forms[0], data={**fields, "login": user, "password": "any"})
                assert page.is_success, page.text

    def _client(self) -> httpx.Client:
        return httpx.Client(base_url=self.issuer, verify=self.verify, follow_redirects=True, timeout=20)

    def claims(self, **changes: Any) -> dict[str, Any]:
        """Return valid claims of a workload, with changes; None removes a claim."""
        now = int(time.time())
        claims = {
            "iss": self.issuer,
            "aud": AUDIENCE,
            "sub": "ci",
            "iat": now,
            "exp": now + 300,
            "realm_access": {"roles": ["slice-workload"]},
        }
        return {name: value for name, value in {**claims, **changes}.items() if value is not None}

    def header(self, algorithm: str = "RS256", **changes: Any) -> dict[str, Any]:
        """Return the header of the provider's tokens, with changes; None removes a field."""
        header = {"alg": algorithm, "typ": "at+jwt", "kid": self.keys[algorithm].kid}
        return {name: value for name, value in {**header, **changes}.items() if value is not None}

    def sign(
        self, claims: dict[str, Any] | bytes, header: dict[str, Any] | None = None, algorithm: str = "RS256"
    ) -> str:
        """Return a token signed with the key of the provider."""
        payload = claims if isinstance(claims, bytes) else json.dumps(claims).encode()
        return compact(header or self.header(algorithm), payload, algorithm, self.keys[algorithm])


@contextmanager
def running_provider(certificate: Path | None = None, key: Path | None = None) -> Iterator[Provider]:
    """Run an OpenID provider with keys of its own; over TLS with a certificate (PEM) and its key. Skips or fails the
    test if the provider cannot be installed.
    """
    try:
        installed = ensure_installed(_FILES, kept_folder() / "oidc")
    except NotInstalled as missing:
        missing_server(f"the OpenID provider of the tests: {missing}")
    port = free_port()
    files = [] if certificate is None else [str(certificate), str(key)]
    command = [str(node_of(installed)), str(_PROGRAM), str(installed), str(port), AUDIENCE, *files]
    program = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    assert program.stdin is not None
    assert program.stdout is not None
    scheme = "http" if certificate is None else "https"
    provider = Provider(f"{scheme}://127.0.0.1:{port}", new_keys("1"), program.stdin, program.stdout)
    try:
        provider.use_keys(provider.keys)
        provider.open()
        yield provider
    finally:
        program.stdin.close()
        until(lambda: program.poll() is not None, "the provider has ended", 20)
        program.stdout.close()


@pytest.fixture(scope="session")
def oidc_provider() -> Iterator[Provider]:
    """OpenID provider of the test session. Tests that change it start their own."""
    with running_provider() as provider:
        yield provider
