"""Response types of `/v1/skus`, `/v1/images` and `/v1/app-profiles`: versions of the entries of the catalogue."""

from control_plane.client.answers import Action, Answer


class Sku(Answer, frozen=True):
    """A version of a SKU, the size of a slice."""

    name: str
    version: int
    state: str
    vcpus: int
    memory_mib: int
    reason: str | None = None
    gpu_model: str | None = None
    gpu_count: int = 0
    disk_gib: int = 0
    fabric: str | None = None
    network_modes: tuple[str, ...] = ()
    rate_mbit: int | None = None
    numa: str | None = None
    placement: str | None = None
    price_per_hour: str | None = None
    provisioning_seconds: int | None = None
    max_lease_seconds: int | None = None
    allowed_actions: dict[str, Action] | None = None


class ReadinessCheck(Answer, frozen=True):
    port: int
    banner: str


class Image(Answer, frozen=True):
    """A version of a boot image."""

    name: str
    version: int
    state: str
    format: str
    reason: str | None = None
    digest: str | None = None
    size_bytes: int = 0
    architecture: str | None = None
    firmware: str | None = None
    readiness: ReadinessCheck | None = None
    default_user: str | None = None
    minimum_disk_gib: int = 0
    allowed_actions: dict[str, Action] | None = None


class AppProfile(Answer, frozen=True):
    """A version of an app profile, the requirements of a workload."""

    name: str
    version: int
    state: str
    fabrics: tuple[str, ...]
    reason: str | None = None
    description: str = ""
    allowed_actions: dict[str, Action] | None = None
