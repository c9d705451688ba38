"""Settings of the control plane's programs, from the environment (`SLICEPLANE_*`); no other module reads it."""

from datetime import timedelta
from ipaddress import IPv4Network, IPv6Network
from pathlib import Path
from typing import Final, TypeVar

from psycopg import ProgrammingError
from psycopg.conninfo import conninfo_to_dict
from pydantic import (
    Field,
    SecretStr,
    ValidationError,
    field_validator,
    model_validator,
)
from pydantic_core import ErrorDetails
from pydantic_settings import BaseSettings, SettingsConfigDict, SettingsError
from redis.asyncio.connection import parse_url
from sqlalchemy import make_url
from sqlalchemy.exc import ArgumentError

from control_plane.decisions.issuers import Issuer
from control_plane.work.report_budget import Limits

_SILENT_BEATS: Final = 4
_MOST_LEADS: Final = 16
_LONGEST_PREFIX: Final = 23
ROLE: Final = "sliceplane_app"
"""The Postgres role of all programs except the sealer."""
ROLE_OF_SEALER: Final = "sliceplane_sealer"
SLICE_NETWORKS: Final = IPv4Network("10.100.0.0/16")
"""The default network of slices."""


_PREFIX: Final = "SLICEPLANE_"
_DATABASE_DRIVERS: Final = frozenset({"postgresql", "postgresql+psycopg"})
_LAST_PORT: Final = 65535

S = TypeVar("S", bound=BaseSettings)


class SettingsRefused(Exception):
    """The environment contains invalid settings; the message states which ones and why."""


class ProgramSettings(BaseSettings):
    """Settings that all programs have. `database_url` is a SQLAlchemy URL with the database role of the program."""

    model_config = SettingsConfigDict(env_prefix=_PREFIX, extra="ignore")

    database_url: SecretStr
    log: str = Field(default="json", pattern="^(json|console)$")
    failpoints: str = ""

    @field_validator("database_url")
    @classmethod
    def _is_a_postgres_url(cls, given: SecretStr) -> SecretStr:
        try:
            driver = make_url(given.get_secret_value()).drivername
        except (ArgumentError, ValueError):
            driver = ""
        if driver not in _DATABASE_DRIVERS:
            # Leave the value out of the message: it contains a password.
            raise ValueError(
                "the value must be a URL of the form postgresql+psycopg://USER:PASSWORD@HOST:PORT/DATABASE"
            )
        return given


class SealerSettings(ProgramSettings):
    """Settings of the sealer, which uses neither Redis nor the key that signs orders.

    `database_url` is for `sliceplane_sealer`.
    """

    sealing_key_file: Path
    """The Ed25519 private key (PKCS #8, PEM) that signs heads of the ledger. Keep it from the administrators of the
    database. After a change, auditors need the public keys of both."""
    heads_file: Path | None = None
    """File to which the sealer appends every head."""
    heads_url: str | None = Field(default=None, pattern="^https?://")
    """URL to which the sealer sends every head with POST."""
    heads_bucket_url: str | None = Field(default=None, pattern="^https?://[^/]+/[^/?#]+(/[^?#]*)?$")
    """Bucket with object lock in an S3-compatible store, in which the sealer stores every head:
    `https://HOST[:PORT]/BUCKET[/PREFIX]`."""
    heads_bucket_access_key: str = ""
    heads_bucket_secret_key: SecretStr = SecretStr("")
    heads_bucket_region: str = "us-east-1"
    heads_bucket_days: int = Field(default=365, ge=1, le=36500)
    """How long the store keeps each head from being deleted or replaced, in days."""

    @model_validator(mode="after")
    def _bucket_has_credentials(self) -> "SealerSettings":
        given = bool(self.heads_bucket_access_key), bool(self.heads_bucket_secret_key.get_secret_value())
        if any(given) != (self.heads_bucket_url is not None) or any(given) != all(given):
            raise ValueError(
                "heads_bucket_url, heads_bucket_access_key and heads_bucket_secret_key require each other:"
                " set all of them, or none"
            )
        return self


class Settings(ProgramSettings):
    """Settings of every control plane program except the sealer.

    `database_url` is a SQLAlchemy URL for `sliceplane_app`; `redis_url` is for the control plane's own Redis
    user. `queue_host` and `queue_port` are where nodes find Redis, `listen` where the API is served
    (`host:port`, several with commas).

    With `tls_certificate_file` (PEM, including the chain) and `tls_key_file`, the API uses TLS only. Redis is used over
    TLS if its URL begins with `rediss://`; `redis_ca_file` (PEM) is then the CA used to verify it, and nodes receive it
    with each session. To change that CA, put both CAs into the file for `session_seconds` before Redis presents a
    certificate of the new one.

    `signing_key_file` contains the Ed25519 private key (PKCS #8, PEM) that signs orders; the API and the dispatcher
    need it, and all of them use the same file. To change it: put the new key's public half into the folder
    `retired_keys` (`*.pem`) and restart; wait for `session_seconds`, so that every node has received it; replace the
    key file, and leave the old key's public half in the folder for another `session_seconds`.
    """

    redis_url: SecretStr
    queue_host: str = "127.0.0.1"
    queue_port: int = 6379
    queue_tls: bool | None = None
    """Whether nodes use TLS to their queue; None: as the control plane does. Set it if Redis is behind a TLS proxy."""
    redis_ca_file: Path | None = None
    listen: str = "127.0.0.1:8080"
    api_workers: int = Field(default=1, ge=1, le=64)
    """Number of processes of the API program that answer requests (`control_plane.api.workers`)."""
    tls_certificate_file: Path | None = None
    tls_key_file: Path | None = None
    ssh_gateway_listen: str = "127.0.0.1:2222"
    """Where the SSH gateway listens (`host:port`, several with commas)."""
    ssh_gateway_host_key_file: Path | None = None
    """File with the private host key of the SSH gateway, as ssh-keygen writes it, without a passphrase."""
    ssh_gateway_address: str | None = None
    """Where callers reach the SSH gateway (`host:port`), as the API shows it; None: it shows no gateway."""
    ssh_gateway_host_key: str | None = Field(default=None, pattern=r"^[a-z0-9@.-]+ [A-Za-z0-9+/=]+( .*)?$")
    """Public host key of the SSH gateway (a line as in a `.pub` file), as the API shows it; None: it shows none."""
    terminal_listen: str | None = None
    """Where the SSH gateway takes the WebSockets of terminals (`host:port`, several with commas), with the certificate
    of `tls_certificate_file` if there is one; None: it has no terminals."""
    terminal_address: str | None = Field(default=None, pattern=r"^wss?://[A-Za-z0-9.\[\]:-]{1,255}$")
    """URL at which browsers reach `terminal_listen`, such as `wss://gateway.example.com:2280`, as the API shows it;
    None: terminals are not offered."""
    deadline_grace_seconds: float = Field(default=30.0, ge=0)
    """Time after a start during which deadlines do not fire, so that nodes can first report what happened meanwhile."""
    lease_expiring_seconds: tuple[int, ...] = (24 * 3600, 3600)
    """Times before the end of a lease, in seconds, at each of which `allocation.lease_expiring` is recorded; a JSON
    list of at most 16 numbers. If it is empty, the end is not announced."""
    signing_key_file: Path | None = None
    retired_keys: Path | None = None
    personal_key_file: Path | None = None
    """File with 32 random bytes in Base64: the master key, which encrypts the keys of projects. These keys encrypt the
    personal data in the ledger (docs/audit.md). All programs except the sealer need the same file. Without it, the
    personal data of all projects is lost. Keep it out of backups of the database."""
    sealing_public_keys_file: Path | None = None
    """File with the public keys of the sealer, one PEM text after the other. Nodes receive them and verify with them
    the heads that orders carry; None: nodes keep no heads."""
    session_seconds: float = Field(default=900.0, gt=0)
    """Lifetime of a node's credentials; a node renews them after half of it."""
    heartbeat_seconds: float = Field(default=5.0, ge=1, le=300)
    """Interval of nodes' heartbeats (PLT-3). Nodes receive a change when they renew, after half of `session_seconds`:
    if the new interval is below a quarter of the old one, all nodes count as unreachable until then."""

    currency: str = Field(default="USD", pattern="^[A-Z]{3}$")
    """Currency of all prices (ISO 4217), for exports in FOCUS and the web console."""
    provider_name: str = Field(default="Sliceplane", min_length=1, max_length=200)
    """Name of the operator, which provides the service and issues the bill, for exports in FOCUS."""
    billing_account: str = Field(default="default", min_length=1, max_length=200)
    """Id of the account that is billed, of which projects are sub-accounts, for exports in FOCUS."""

    max_key_days: float | None = Field(default=None, gt=0)
    """Maximum lifetime of an API key that is issued over the API, in days; None: keys may be issued without expiry."""

    max_session_hours: float = Field(default=12.0, gt=0, le=24 * 365)
    """Maximum lifetime of a caller's session, in hours, and the lifetime of a session that is requested without one."""
    session_idle_minutes: float = Field(default=60.0, gt=0, le=60 * 24 * 365)
    """Time, in minutes, after which a session that was not used is refused; at least twice `credential_use_seconds`,
    because the last use is known only as late as that. A change applies to sessions that are started later."""

    console_hours: float = Field(default=8.0, gt=0, le=24 * 30)
    """Maximum duration of a console session, in hours."""
    console_idle_minutes: float = Field(default=15.0, gt=0, le=60 * 24 * 30)
    """Time without input of a person after which a console session ends, in minutes: keys of a serial port; keys,
    pointer movements and texts of the clipboard of a display."""

    credential_use_seconds: float = Field(default=60.0, gt=0)
    """Interval in which each API process writes the last use of API keys and sessions."""

    oidc: tuple[Issuer, ...] = ()
    """Identity providers with tokens that callers may send instead of an API key; a JSON list. The fields of a provider
    are those of `control_plane.decisions.issuers.Issuer`."""

    report_burst: int = Field(default=1000, ge=20, le=1_000_000)
    """Tokens that the report budget of a node holds (`control_plane.work.report_budget`)."""
    reports_per_minute: int = Field(default=60, ge=1, le=1_000_000)
    """Tokens that the report budget of a node regains per minute."""

    waiting_requests: int = Field(default=16, ge=0, le=1000)
    """Number of requests of a project that may wait for capacity at a time, unless the project has a limit of its own;
    0: none."""
    wait_seconds: int = Field(default=3600, ge=1, le=30 * 24 * 3600)
    """How long a request waits for capacity if it does not name a time, in seconds."""

    requests_per_minute: int = Field(default=1200, ge=0, le=1_000_000)
    """Requests of one principal per minute, over all API processes; 0: not limited."""
    project_requests_per_minute: int = Field(default=6000, ge=0, le=1_000_000)
    """Requests per minute of all principals that are limited to the same single project; 0: not limited."""
    unauthenticated_per_minute: int = Field(default=60, ge=0, le=1_000_000)
    """Requests without valid credentials per minute, source address and API process; 0: not limited."""
    request_window_seconds: int = Field(default=60, ge=1, le=3600)
    """Length of the sliding window in which requests are counted. A shorter one permits shorter bursts at the same rate
    per minute."""

    tasks_kept_days: float = Field(default=1.0, gt=0)
    """How long tasks are listed after they succeeded or were superseded, in days."""
    failed_tasks_kept_days: float = Field(default=7.0, gt=0)
    """How long other ended tasks are listed, in days; the reason of a failure is listed as long."""

    audit_reads: float = Field(default=1.0, ge=0, le=1)
    """Share of the reading requests (GET and HEAD) that the access log records. Changes and refusals are always
    recorded."""
    audit_nodes: str = Field(default="refusals", pattern="^(refusals|all)$")
    """Which requests of nodes the access log records besides enrolments and sessions: only refused ones, or all."""
    audit_rows: int = Field(default=1_000_000, ge=1000)
    """Number of rows that the access log keeps."""
    audit_days: float = Field(default=90.0, gt=0)
    """How long the access log keeps a row, in days."""
    trusted_proxies: tuple[IPv4Network | IPv6Network, ...] = ()
    """Networks of the proxies that name the source of a request in `X-Forwarded-For`; a JSON list. The header of any
    other client is ignored."""

    place_on_simulated_nodes: bool = False
    """Whether requests that name no node may be placed on simulated nodes. Such nodes run no guests, so only trial and
    test deployments allow it."""
    slice_networks: IPv4Network = SLICE_NETWORKS
    """The network from which each new node gets a /24 subnet for its slices. It contains at least two /24 subnets."""

    @property
    def lease_leads(self) -> tuple[timedelta, ...]:
        """Return the times before the end of a lease at which the end is announced."""
        return tuple(timedelta(seconds=each) for each in self.lease_expiring_seconds)

    @property
    def max_key_lifetime(self) -> timedelta | None:
        """Return the maximum lifetime of an API key that is issued over the API; None: not limited."""
        return None if self.max_key_days is None else timedelta(days=self.max_key_days)

    @property
    def max_session_lifetime(self) -> timedelta:
        """Return the maximum lifetime of a caller's session."""
        return timedelta(hours=self.max_session_hours)

    @property
    def session_idle_seconds(self) -> int:
        """Return the time after which a session that was not used is refused, in seconds."""
        return max(1, round(self.session_idle_minutes * 60))

    @property
    def report_limits(self) -> Limits:
        """Return the limits of the budget that all reports of a node share."""
        return Limits(self.report_burst, self.reports_per_minute)

    @property
    def redis_over_tls(self) -> bool:
        """Whether the control plane uses TLS to Redis."""
        return self.redis_url.get_secret_value().startswith("rediss://")

    @property
    def nodes_over_tls(self) -> bool:
        """Whether nodes use TLS to their queue."""
        return self.redis_over_tls if self.queue_tls is None else self.queue_tls

    @property
    def unreachable_after(self) -> timedelta:
        """Return the time without heartbeat after which a node is unreachable and gets no new slices: 4 heartbeats."""
        return timedelta(seconds=_SILENT_BEATS * self.heartbeat_seconds)

    @field_validator("redis_url")
    @classmethod
    def _is_a_redis_url(cls, given: SecretStr) -> SecretStr:
        try:
            parse_url(given.get_secret_value())
        except ValueError:
            # Leave the value out of the message: it contains a password.
            raise ValueError("the value must be a URL of the form rediss://USER:PASSWORD@HOST:PORT") from None
        return given

    @field_validator("listen", "ssh_gateway_listen", "ssh_gateway_address", "terminal_listen")
    @classmethod
    def _names_hosts_and_ports(cls, given: str | None) -> str | None:
        for address in [] if given is None else given.split(","):
            host, _, port = address.rpartition(":")
            if not (host and port.isascii() and port.isdigit() and int(port) <= _LAST_PORT):
                raise ValueError(f"{address!r} is not an address of the form HOST:PORT")
        return given

    @field_validator("lease_expiring_seconds")
    @classmethod
    def _is_a_list_of_lead_times(cls, given: tuple[int, ...]) -> tuple[int, ...]:
        if len(given) > _MOST_LEADS or any(each < 1 for each in given):
            raise ValueError(
                f"{list(given)} is not a list of at most {_MOST_LEADS} positive numbers of seconds, such as [86400, 3600]"
            )
        return given

    @field_validator("slice_networks")
    @classmethod
    def _holds_subnets(cls, networks: IPv4Network) -> IPv4Network:
        if networks.prefixlen > _LONGEST_PREFIX or not networks.is_private:
            raise ValueError(f"{networks} is not a private network that contains at least two /24 networks")
        return networks

    @field_validator("oidc")
    @classmethod
    def _distinct_issuers(cls, issuers: tuple[Issuer, ...]) -> tuple[Issuer, ...]:
        for values in ([each.name for each in issuers], [each.issuer for each in issuers]):
            repeated = sorted({each for each in values if values.count(each) > 1})
            if repeated:
                raise ValueError(f"{', '.join(repeated)}: listed more than once; list each provider once")
        return issuers

    @model_validator(mode="after")
    def _uses_are_written_before_a_session_is_idle(self) -> "Settings":
        if self.session_idle_minutes * 60 < 2 * self.credential_use_seconds:
            raise ValueError(
                "session_idle_minutes must be at least twice credential_use_seconds, else a session in use is refused as idle"
            )
        return self

    @model_validator(mode="after")
    def _certificate_with_its_key(self) -> "Settings":
        if (self.tls_certificate_file is None) != (self.tls_key_file is None):
            raise ValueError("tls_certificate_file and tls_key_file require each other: set both, or neither")
        return self


class MigrationSettings(BaseSettings):
    """The setting of `sliceplane-server migrate`, which needs no other one."""

    model_config = SettingsConfigDict(env_prefix=_PREFIX, extra="ignore")

    migrate_url: SecretStr
    """The database to migrate, as a superuser: a URL or a libpq connection string."""

    @field_validator("migrate_url")
    @classmethod
    def _is_a_connection_string(cls, given: SecretStr) -> SecretStr:
        """Check that this is a connection string; return it for libpq, without the driver of a SQLAlchemy URL."""
        text = given.get_secret_value().replace("postgresql+psycopg://", "postgresql://", 1)
        try:
            options = conninfo_to_dict(text)
        except ProgrammingError:
            options = {}
        if not options:
            # Leave the value out of the message: it contains a password.
            raise ValueError(
                "the value must be a URL of the form postgresql://USER:PASSWORD@HOST:PORT/DATABASE"
            )
        return SecretStr(text)


def read_settings() -> Settings:
    """Read the settings from the environment. Raises `SettingsRefused`."""
    return _read(Settings)


def read_sealer_settings() -> SealerSettings:
    """Read the settings of the sealer from the environment. Raises `SettingsRefused`."""
    return _read(SealerSettings)


def read_migration_settings() -> MigrationSettings:
    """Read the setting of `sliceplane-server migrate`. Raises `SettingsRefused`."""
    return _read(MigrationSettings)


def _read(settings: type[S]) -> S:
    try:
        return settings()
    except SettingsError as error:
        raise SettingsRefused(f"{error}: {error.__cause__}") from None
    except ValidationError as error:
        # Leave the values out of the message: some are secrets.
        raise SettingsRefused("; ".join(map(_objection, error.errors(include_input=False)))) from None


def _objection(error: ErrorDetails) -> str:
    """Return a validation error as `VARIABLE.path: message`: the environment variable and the path in its value."""
    reason, place = error["msg"].removeprefix("Value error, "), error["loc"]
    if error["type"] == "missing":
        reason = "not set"
    if not place:
        return reason
    name, *within = map(str, place)
    return f"{'.'.join((f'{_PREFIX}{name.upper()}', *within))}: {reason}"
