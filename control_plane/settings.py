"""Everything the control plane's programs can be told, from the environment (`SLICEPLANE_*`), read here alone."""

from collections import Counter
from datetime import timedelta
from ipaddress import IPv4Network
from pathlib import Path
from typing import Final

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SecretStr,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic_core import ErrorDetails
from pydantic_settings import BaseSettings, SettingsConfigDict, SettingsError
from redis.asyncio.connection import parse_url
from sqlalchemy import make_url
from sqlalchemy.exc import ArgumentError

from control_plane.decisions.readiness import SSH, Check
from control_plane.decisions.skus import IMAGES, Images
from control_plane.report_budget import Limits
from tasks.fields import ImageName, Port
from tasks.orders import LONGEST_BANNER

_SILENT_BEATS: Final = 4
_LONGEST_PREFIX: Final = 23
SLICE_NETWORKS: Final = IPv4Network("10.100.0.0/16")
"""Unless told otherwise."""


_PREFIX: Final = "SLICEPLANE_"
_DATABASE_DRIVERS: Final = frozenset({"postgresql", "postgresql+psycopg"})
_LAST_PORT: Final = 65535


class SettingsRefused(Exception):
    """The environment cannot be used; the message says which settings are wrong and why."""


class ImageSettings(BaseModel):
    """An image that callers may ask for, and the sign that a guest of it is ready (ALC-9): its SSH banner on port 22,
    unless a `port` is named.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    name: ImageName
    """As nodes have it: the name of its folder there."""
    port: Port | None = None
    """TCP port of the guest, that answers when it is ready."""
    banner: str = Field(default="", max_length=LONGEST_BANNER)
    """What a line from that port begins with; empty where an open port is enough."""

    @field_validator("banner")
    @classmethod
    def _can_be_heard(cls, banner: str, info: ValidationInfo) -> str:
        objections = []
        if not (banner.isascii() and banner.isprintable()):
            objections.append("it is to be printable ASCII")
        if banner and info.data.get("port", 0) is None:
            objections.append("it is listened for at a port, and none is named")
        if objections:
            raise ValueError("; ".join(objections))
        return banner

    @property
    def check(self) -> Check:
        return SSH if self.port is None else Check(self.port, self.banner)


class Settings(BaseSettings):
    """Settings of every control plane program.

    `database_url` is a SQLAlchemy URL for `sliceplane_app`; `redis_url` is for the control plane's own Redis
    user. `queue_host` and `queue_port` are where nodes find Redis, `listen` where the API is served
    (`host:port`, several with commas).

    With `tls_certificate_file` (PEM, the chain included) and `tls_key_file` the API speaks TLS and nothing else.
    Redis is spoken to over TLS if its URL begins with `rediss://`; `redis_ca_file` (PEM) is then the CA that it is
    believed by, and nodes are told of it. To change that CA, have the file hold both for `session_seconds` before
    Redis shows the new one.

    `signing_key_file` holds the Ed25519 private key (PKCS #8, PEM) that orders are signed with; the API and the
    dispatcher need it, and one file for all of them. To change it: put the new key's public half into the folder
    `retired_keys` (`*.pem`) and restart, wait for `session_seconds`, by when every node has heard of it, exchange the
    file and leave the old key's public half in the folder for as long again.
    """

    model_config = SettingsConfigDict(env_prefix=_PREFIX, extra="ignore")

    database_url: SecretStr
    redis_url: SecretStr
    queue_host: str = "127.0.0.1"
    queue_port: int = 6379
    queue_tls: bool | None = None
    """Whether nodes speak TLS to their queue; None: if we do. Another answer is for a Redis behind a TLS proxy."""
    redis_ca_file: Path | None = None
    listen: str = "127.0.0.1:8080"
    tls_certificate_file: Path | None = None
    tls_key_file: Path | None = None
    log: str = Field(default="json", pattern="^(json|console)$")
    failpoints: str = ""
    deadline_grace_seconds: float = Field(default=30.0, ge=0)
    """After a start, deadlines do not fire for so long: nodes first say what happened meanwhile."""
    signing_key_file: Path | None = None
    retired_keys: Path | None = None
    session_seconds: float = Field(default=900.0, gt=0)
    """How long a node's credentials are good for; it renews them at half of it."""
    heartbeat_seconds: float = Field(default=5.0, ge=1, le=300)
    """How often nodes say that they live (PLT-3). They hear of a change when they renew, at half of `session_seconds`:
    one to less than a quarter has all of them taken for silent until then."""

    report_burst: int = Field(default=1000, ge=20, le=1_000_000)
    """Tokens that the budget of a node's reports holds (`control_plane.report_budget`)."""
    reports_per_minute: int = Field(default=60, ge=1, le=1_000_000)
    """Tokens that it regains per minute."""

    tasks_kept_days: float = Field(default=1.0, gt=0)
    """For how long tasks are listed after they came to a good end."""
    failed_tasks_kept_days: float = Field(default=7.0, gt=0)
    """The same after a bad end; only for so long can it be seen at a glance why."""

    place_on_simulated_nodes: bool = False
    """Whether slices are placed on simulated nodes by requests that name no node. Such a node has no guests, so only a
    deployment for trials and tests allows it."""
    slice_networks: IPv4Network = SLICE_NETWORKS
    """Of which each new node gets a /24 for its slices; at least two of them."""
    images: tuple[ImageSettings, ...] = ()
    """What callers may ask for beside the release's own; a JSON list. A change is for allocations that are asked for
    after it: each keeps the sign that it began with, also of an image that is offered no more.
    """

    @property
    def offered(self) -> Images:
        """By what the guests of each image that can be asked for are found ready."""
        return {**IMAGES, **{each.name: each.check for each in self.images}}

    @property
    def report_limits(self) -> Limits:
        """The budget that all reports of a node share."""
        return Limits(self.report_burst, self.reports_per_minute)

    @property
    def redis_over_tls(self) -> bool:
        return self.redis_url.get_secret_value().startswith("rediss://")

    @property
    def nodes_over_tls(self) -> bool:
        return self.redis_over_tls if self.queue_tls is None else self.queue_tls

    @property
    def silent_after(self) -> timedelta:
        """A node unheard of for so long gets nothing new (PLT-3): four heartbeats."""
        return timedelta(seconds=_SILENT_BEATS * self.heartbeat_seconds)

    @field_validator("database_url")
    @classmethod
    def _is_a_postgres_url(cls, given: SecretStr) -> SecretStr:
        try:
            driver = make_url(given.get_secret_value()).drivername
        except (ArgumentError, ValueError):
            driver = ""
        if driver not in _DATABASE_DRIVERS:
            # Without the value, which holds a password.
            raise ValueError("not a URL of the form postgresql+psycopg://USER:PASSWORD@HOST:PORT/DATABASE")
        return given

    @field_validator("redis_url")
    @classmethod
    def _is_a_redis_url(cls, given: SecretStr) -> SecretStr:
        try:
            parse_url(given.get_secret_value())
        except ValueError:
            # Without the value, which holds a password.
            raise ValueError("not a URL of the form rediss://USER:PASSWORD@HOST:PORT") from None
        return given

    @field_validator("listen")
    @classmethod
    def _names_hosts_and_ports(cls, given: str) -> str:
        for address in given.split(","):
            host, _, port = address.rpartition(":")
            if not (host and port.isascii() and port.isdigit() and int(port) <= _LAST_PORT):
                raise ValueError(f"{address!r} is not an address of the form HOST:PORT")
        return given

    @field_validator("slice_networks")
    @classmethod
    def _holds_subnets(cls, networks: IPv4Network) -> IPv4Network:
        if networks.prefixlen > _LONGEST_PREFIX or not networks.is_private:
            raise ValueError(f"{networks} is no private network of at least two /24")
        return networks

    @field_validator("images")
    @classmethod
    def _named_once(cls, images: tuple[ImageSettings, ...]) -> tuple[ImageSettings, ...]:
        names = Counter(each.name for each in images)
        objections = [
            *(f"{name} is named {times} times" for name, times in sorted(names.items()) if times > 1),
            *(f"{name} is the release's own" for name in sorted(names.keys() & IMAGES.keys())),
        ]
        if objections:
            raise ValueError("; ".join(objections))
        return images

    @model_validator(mode="after")
    def _certificate_with_its_key(self) -> "Settings":
        if (self.tls_certificate_file is None) != (self.tls_key_file is None):
            raise ValueError("tls_certificate_file and tls_key_file go together: give both, or neither")
        return self


def read_settings() -> Settings:
    """Those of the environment. Raises `SettingsRefused`."""
    try:
        return Settings()
    except SettingsError as error:
        raise SettingsRefused(f"{error}: {error.__cause__}") from None
    except ValidationError as error:
        # Without the values: some are secrets.
        raise SettingsRefused("; ".join(map(_objection, error.errors(include_input=False)))) from None


def _objection(error: ErrorDetails) -> str:
    """By the name of the environment variable and the place in its value, where it is about one."""
    why, place = error["msg"].removeprefix("Value error, "), error["loc"]
    if error["type"] == "missing":
        why = "not set"
    if not place:
        return why
    name, *within = map(str, place)
    return f"{'.'.join((f'{_PREFIX}{name.upper()}', *within))}: {why}"
