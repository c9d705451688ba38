"""Everything the control plane's programs can be told, from the environment (`SLICEPLANE_*`), read here alone."""

from pydantic import Field, SecretStr
from pydantic_settings import BaseSettings, SettingsConfigDict


class Settings(BaseSettings):
    """Settings of every control plane program.

    `database_url` is a SQLAlchemy URL for `sliceplane_app`; `redis_url` is for the control plane's own Redis
    user. `queue_host` and `queue_port` are where nodes find Redis, `listen` where the API is served
    (`host:port`, several with commas).
    """

    model_config = SettingsConfigDict(env_prefix="SLICEPLANE_", extra="ignore")

    database_url: SecretStr
    redis_url: SecretStr
    queue_host: str = "127.0.0.1"
    queue_port: int = 6379
    listen: str = "127.0.0.1:8080"
    log: str = Field(default="json", pattern="^(json|console)$")
    failpoints: str = ""
    deadline_grace_seconds: float = Field(default=30.0, ge=0)
    """After a start, deadlines do not fire for so long: nodes first say what happened meanwhile."""
