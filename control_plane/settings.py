"""Everything the control plane's programs can be told, from the environment (`SLICEPLANE_*`), read here alone."""

from datetime import timedelta
from ipaddress import IPv4Network
from pathlib import Path
from typing import Final

from pydantic import Field, SecretStr, field_validator, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

_SILENT_BEATS: Final = 4
_LONGEST_PREFIX: Final = 23
SLICE_NETWORKS: Final = IPv4Network("10.100.0.0/16")
"""Unless told otherwise."""


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

    model_config = SettingsConfigDict(env_prefix="SLICEPLANE_", extra="ignore")

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

    tasks_kept_days: float = Field(default=1.0, gt=0)
    """For how long tasks are listed after they came to a good end."""
    failed_tasks_kept_days: float = Field(default=7.0, gt=0)
    """The same after a bad end; only for so long can it be seen at a glance why."""

    slice_networks: IPv4Network = SLICE_NETWORKS
    """Of which each new node gets a /24 for its slices; at least two of them."""

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

    @field_validator("slice_networks")
    @classmethod
    def _holds_subnets(cls, networks: IPv4Network) -> IPv4Network:
        if networks.prefixlen > _LONGEST_PREFIX or not networks.is_private:
            raise ValueError(f"{networks} is no private network of at least two /24")
        return networks

    @model_validator(mode="after")
    def _certificate_with_its_key(self) -> "Settings":
        if (self.tls_certificate_file is None) != (self.tls_key_file is None):
            raise ValueError("tls_certificate_file and tls_key_file go together: give both, or neither")
        return self
