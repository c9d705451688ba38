"""Request bodies of the REST API. A field that is `UNSET` is not sent, so that the control plane's default applies."""

import msgspec
from msgspec import UNSET, UnsetType


class Body(msgspec.Struct, frozen=True, kw_only=True):
    """Base class of the request bodies and of their parts."""


class OpenPort(Body, frozen=True, tag_field="kind", tag="port"):
    """An ingress rule from a port of a public address to a port of the slice."""

    port: int
    protocol: str | UnsetType = UNSET
    public_port: int | UnsetType = UNSET
    """Port of the public address; if unset, a free port is chosen."""
    slot: int | UnsetType = UNSET
    """Index of the slot within the allocation, counted from 0."""
    sources: list[str] | UnsetType = UNSET
    """Networks from which connections are allowed; empty: all."""


class OpenAddress(Body, frozen=True, tag_field="kind", tag="address"):
    """An ingress rule from a whole public address to the slice: all protocols and ports."""

    slot: int | UnsetType = UNSET
    sources: list[str] | UnsetType = UNSET


OpenIngress = OpenPort | OpenAddress


class CreateAllocation(Body, frozen=True):
    """Body of `POST /v1/allocations`."""

    sku: str
    ssh_authorized_keys: list[str]
    project: str | UnsetType = UNSET
    alternative_skus: list[str] | UnsetType = UNSET
    network_mode: str | UnsetType = UNSET
    image: str | UnsetType = UNSET
    app_profile: str | UnsetType = UNSET
    lease_seconds: int | UnsetType = UNSET
    slot_count: int | UnsetType = UNSET
    node: str | UnsetType = UNSET
    ingress: list[OpenIngress] | UnsetType = UNSET
    replace_on_failure: bool | UnsetType = UNSET
    labels: dict[str, str] | UnsetType = UNSET
    apart_from: dict[str, str] | UnsetType = UNSET
    max_price_per_hour: str | UnsetType = UNSET
    """Highest price of the whole allocation per hour."""
    user_data: str | UnsetType = UNSET
    gateway_access: bool | UnsetType = UNSET
    wait_for_capacity: "WaitForCapacity | bool | UnsetType" = UNSET
    """Whether the request waits if it cannot be placed now, and how."""


class WaitForCapacity(Body, frozen=True):
    """How a request waits for capacity."""

    wait_seconds: int | UnsetType = UNSET
    """How long the request waits before the allocation fails, in seconds."""
    priority: int | UnsetType = UNSET
    """Requests with a higher priority are placed first."""


class ReportFault(Body, frozen=True):
    """Body of `POST /v1/allocations/{allocation}/fault`."""

    fault: str
    """What is wrong with the hardware, in one line."""


class RenewLease(Body, frozen=True):
    """Body of `POST /v1/allocations/{allocation}/lease`."""

    lease_seconds: int
    """Time from now until the lease ends, in seconds."""


class ApproveSlot(Body, frozen=True):
    """Body of `POST /v1/nodes/{node}/slots/{index}/approve`. Without `skus`, the control plane chooses one."""

    skus: list[str] | UnsetType = UNSET


class NodeAddress(Body, frozen=True):
    """A public address of a node. `use`: `whole` for one slice, `ports` for several slices, port by port."""

    address: str
    use: str
    first_port: int | UnsetType = UNSET
    last_port: int | UnsetType = UNSET


class NodeAddresses(Body, frozen=True):
    """Body of `PUT /v1/nodes/{node}/public-addresses`."""

    addresses: list[NodeAddress]


class MacRange(Body, frozen=True):
    """Pool of MAC addresses in the body of `PUT /v1/nodes/{node}/network`."""

    first: str
    last: str


class ConfigureNode(Body, frozen=True):
    """Body of `PUT /v1/nodes/{node}/network`."""

    bridge: str | UnsetType = UNSET
    l2_domain: str | UnsetType = UNSET
    mac_pool: MacRange | None = None


class RegisterNode(Body, frozen=True):
    """Body of `POST /v1/nodes`."""

    id: str


class Because(Body, frozen=True):
    """Body of requests that only have a reason, which the ledger records."""

    reason: str


class DrainNode(Body, frozen=True):
    """Body of `POST /v1/nodes/{node}/drain`."""

    reason: str
    release_after_seconds: int | UnsetType = UNSET
    """Time after which the allocations that still hold slots are released; 0: now; unset: they end by themselves."""


class CreateProject(Body, frozen=True):
    """Body of `POST /v1/projects`."""

    id: str
    description: str | UnsetType = UNSET


class DescribeProject(Body, frozen=True):
    """Body of `PATCH /v1/projects/{project}`."""

    description: str


class SetProjectLimits(Body, frozen=True):
    """Body of `PUT /v1/projects/{project}/limits`: all limits of the project. An unset one does not limit."""

    slots: int | UnsetType = UNSET
    gpus: int | UnsetType = UNSET
    vcpus: int | UnsetType = UNSET
    memory_mib: int | UnsetType = UNSET
    public_addresses: int | UnsetType = UNSET
    public_ports: int | UnsetType = UNSET
    waiting_requests: int | UnsetType = UNSET
    price_per_hour: str | UnsetType = UNSET
    max_lease_seconds: int | UnsetType = UNSET
    budget_per_month: str | UnsetType = UNSET


class SetReservation(Body, frozen=True):
    """Body of `PUT /v1/projects/{project}/reservations/{sku}`."""

    slots: int


class SetPrincipalLimits(Body, frozen=True):
    """Body of `PUT /v1/principals/limits`: all limits of the caller. An unset one does not limit."""

    actor: str
    slots: int | UnsetType = UNSET
    price_per_hour: str | UnsetType = UNSET


class SkuContent(Body, frozen=True):
    """Body of `PUT /v1/skus/{sku}`: the whole content of a version."""

    vcpus: int
    memory_mib: int
    gpu_model: str | UnsetType = UNSET
    gpu_count: int | UnsetType = UNSET
    disk_gib: int | UnsetType = UNSET
    fabric: str | UnsetType = UNSET
    network_modes: list[str] | UnsetType = UNSET
    rate_mbit: int | UnsetType = UNSET
    numa: str | UnsetType = UNSET
    placement: str | UnsetType = UNSET
    price_per_hour: str | UnsetType = UNSET
    provisioning_seconds: int | UnsetType = UNSET
    max_lease_seconds: int | UnsetType = UNSET


class ReadinessCheck(Body, frozen=True):
    """The readiness check of an image. If `banner` is empty, an open port is sufficient."""

    port: int | UnsetType = UNSET
    banner: str | UnsetType = UNSET


class ImageContent(Body, frozen=True):
    """Body of `PUT /v1/images/{image}`: the whole content of a version."""

    format: str
    digest: str | UnsetType = UNSET
    size_bytes: int | UnsetType = UNSET
    architecture: str | UnsetType = UNSET
    firmware: str | UnsetType = UNSET
    readiness: ReadinessCheck | UnsetType = UNSET
    default_user: str | UnsetType = UNSET
    minimum_disk_gib: int | UnsetType = UNSET


class AppProfileContent(Body, frozen=True):
    """Body of `PUT /v1/app-profiles/{app_profile}`: the whole content of a version."""

    fabrics: list[str]
    description: str | UnsetType = UNSET


class CreateServiceAccount(Body, frozen=True):
    """Body of `POST /v1/service-accounts`. Empty `projects` and `scopes` do not limit the account."""

    id: str
    role: str
    description: str | UnsetType = UNSET
    projects: list[str] | UnsetType = UNSET
    scopes: list[str] | UnsetType = UNSET


class IssueKey(Body, frozen=True):
    """Body of `POST /v1/keys`. Empty `projects` and `scopes` do not limit the key.

    With `service_account` the key has the role, projects and scopes of the account, and the body has none.
    """

    name: str
    role: str | UnsetType = UNSET
    service_account: str | UnsetType = UNSET
    projects: list[str] | UnsetType = UNSET
    scopes: list[str] | UnsetType = UNSET
    lifetime_seconds: int | UnsetType | None = UNSET


class RotateKey(Body, frozen=True):
    """Body of `POST /v1/keys/{key}/rotate`."""

    overlap_seconds: int | UnsetType = UNSET


class StartSession(Body, frozen=True):
    """Body of `POST /v1/sessions`."""

    label: str | UnsetType = UNSET
    lifetime_seconds: int | UnsetType | None = UNSET


class RevokePrincipal(Body, frozen=True):
    """Body of `POST /v1/principals/revoke`. `actor` is a caller as the ledger records it: `user:PROVIDER/SUBJECT`,
    `service-account:ID`, or `key:ID` for an API key.
    """

    actor: str
    reason: str


class ClosePeriod(Body, frozen=True):
    """Body of `POST /v1/usage/periods/{period}/close`. Both times are RFC 3339; without them, the period is the
    calendar month (UTC) that it is named after.
    """

    starts_at: str | UnsetType = UNSET
    ends_at: str | UnsetType = UNSET


class RequestSshCertificate(Body, frozen=True):
    """Body of `POST /v1/allocations/{allocation}/ssh-certificates`: an OpenSSH public key."""

    public_key: str


class NewConsole(Body, frozen=True):
    """Body of `POST /v1/allocations/{allocation}/console-sessions`: `slot` is counted from 0, and `origin` is that of
    the page that uses the ticket; unset: a program without origin. `kind` is `serial` (default) or `graphics`.
    """

    slot: int = 0
    origin: str | UnsetType = UNSET
    kind: str | UnsetType = UNSET
    shared: bool | UnsetType = UNSET


class NewTerminal(Body, frozen=True):
    """Body of `POST /v1/allocations/{allocation}/terminal-sessions`: `slot` is counted from 0, and `origin` is that of
    the page that uses the ticket.
    """

    origin: str
    slot: int | UnsetType = UNSET


class RequestTask(Body, frozen=True):
    """Body of `POST /v1/tasks`: `slot_id` for a task of one slot, `node_id` for one of a whole node."""

    kind: str
    node_id: str | UnsetType = UNSET
    slot_id: str | UnsetType = UNSET


class SkipEvent(Body, frozen=True):
    """Body of `POST /v1/projections/{name}/skip`."""

    position: int
    reason: str
