"""Identity providers that the operator trusts, and what their tokens grant: the setting `SLICEPLANE_OIDC`."""

from ipaddress import ip_address
from pathlib import Path
from typing import Annotated, Final, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from control_plane.decisions.access import Role
from events.values import ProjectId, issuer_name, project_id

PERMITTED: Final = (
    *("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"),
    *("ES256", "ES384", "ES512", "EdDSA", "Ed25519"),
)
"""Signature algorithms that can be configured (RFC 7518, RFC 8037, RFC 9864). All of them verify with a public key.
HS256 is not permitted, because the provider would have to share its secret key with this server, and `none` is not
permitted, because such a token has no signature.
"""
_DEFAULT: Final = ("RS256", "ES256", "EdDSA")

Text = Annotated[str, Field(min_length=1, max_length=255)]
Seconds = Annotated[float, Field(ge=1, le=30 * 24 * 3600)]


def is_loopback(host: str) -> bool:
    """Return whether a host of a URL is this machine: a loopback address, or `localhost`."""
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def _permitted(name: str) -> str:
    if name not in PERMITTED:
        raise ValueError(f"algorithm {name!r} is not permitted; choose from {', '.join(PERMITTED)}")
    return name


def _issuer_url(raw: str) -> str:
    try:
        url = urlsplit(raw)
        host = url.hostname or ""
        complete = bool(host) and (url.port is None or url.port > 0)
    except ValueError:
        raise ValueError(f"{raw!r} is not a URL; use the form https://HOST[:PORT][/PATH]") from None
    if not (complete and raw.isascii() and raw.isprintable()) or " " in raw:
        raise ValueError(f"{raw!r} is not a URL of the form https://HOST[:PORT][/PATH]")
    if url.query or url.fragment or "@" in url.netloc or "?" in raw or "#" in raw:
        raise ValueError(f"the URL {raw!r} must not contain a user, a query or a fragment")
    if url.scheme != "https" and not (url.scheme == "http" and is_loopback(host)):
        raise ValueError(
            f"the URL {raw!r} must begin with https://; http:// is permitted only for loopback addresses"
        )
    return raw


class Grant(BaseModel):
    """The role that tokens with a certain value of a claim have."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    claim: Text | tuple[Text, ...] = Field(union_mode="left_to_right")
    """Name of the claim, or the path to it, such as `["realm_access", "roles"]`."""
    value: Text
    """The value of the claim, or one element of it if it is a list. The claim `scope` is a list separated by spaces
    (RFC 8693, section 4.2)."""
    role: Role
    projects: tuple[Annotated[str, AfterValidator(project_id)], ...] = Field(default=(), max_length=64)
    """Projects that the grant is limited to; empty: all. A grant of the role caller names at least one, as API keys of
    callers do. The projects need not exist yet.
    """

    @model_validator(mode="after")
    def _limits_callers(self) -> Self:
        if self.role is Role.CALLER and not self.projects:
            raise ValueError("a grant of the role caller must list at least one project; set 'projects'")
        return self

    @property
    def path(self) -> tuple[str, ...]:
        return (self.claim,) if isinstance(self.claim, str) else self.claim

    @property
    def limits(self) -> frozenset[ProjectId] | None:
        """Return the projects that the grant is limited to; None: all."""
        return frozenset(ProjectId(each) for each in self.projects) or None


class Issuer(BaseModel):
    """An identity provider that the operator trusts (OpenID Connect Core 1.0)."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    issuer: Annotated[Text, AfterValidator(_issuer_url)]
    """URL of the provider, exactly as in the claim `iss` of its tokens."""
    name: Annotated[str, AfterValidator(issuer_name)]
    """Short name of the provider. The ledger records the holder of a token as `user:NAME/SUBJECT`."""
    audience: Text
    """The audience (claim `aud`) of tokens for this control plane."""
    client_id: Text | None = None
    """Public client as which the command line and the web console log in users (RFC 8628; RFC 6749, section 4.1); None:
    no logins with this provider."""
    login_scope: Text = "openid"
    """Scopes, separated by spaces, that are requested for a login: those with which the provider issues
    tokens that have `audience` and the claims of the grants."""
    authorised_parties: tuple[Text, ...] = ()
    """Clients, besides `client_id` and `audience`, to which a token with several audiences may be issued (`azp`)."""
    algorithms: tuple[Annotated[str, AfterValidator(_permitted)], ...] = Field(default=_DEFAULT, min_length=1)
    clock_skew_seconds: float = Field(default=30.0, ge=0, le=300)
    """Permitted difference between the clocks of the provider and of this server."""
    max_token_age_seconds: Seconds = 24 * 3600.0
    """Time after its issue (claim `iat`) after which a token is refused even if it has not expired."""
    keys_max_age_seconds: Seconds = 3600.0
    """Time for which the keys of the provider are used while it does not respond."""
    ca_file: Path | None = None
    """CA bundle (PEM) used to verify the provider; None: the CAs that httpx trusts."""
    grants: tuple[Grant, ...] = Field(min_length=1)
