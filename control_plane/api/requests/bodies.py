"""Request bodies. Closed and strict: unknown fields and wrong types are refused, all reasons in one response."""

from collections.abc import Callable
from typing import Annotated, Any, Final, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    model_validator,
)
from pydantic_core import PydanticCustomError

from control_plane.api.requests.as_of import checked_time
from control_plane.decisions.access import SCOPES_OF, Role, Scope
from control_plane.decisions.fleet.macs import MAX_POOL, size_of
from control_plane.decisions.public_addresses import (
    FIRST_PORT,
    LAST_PORT,
    AddressRequest,
    IngressRequest,
    PortRequest,
    host_address,
    normalized_sources,
)
from control_plane.decisions.refusals import Refused
from control_plane.decisions.requests import network_mode_offered, permits_ingress
from control_plane.decisions.reservations import MOST_SLOTS
from control_plane.decisions.tasks import REQUESTABLE, kind_requestable
from control_plane.decisions.tokens import KEY_ACTOR, SERVICE_ACCOUNT_ACTOR, USER_ACTOR, is_recorded_form
from events import values
from events.nodes import DEFAULT_BRIDGE, DEFAULT_L2_DOMAIN, MacPool
from events.ssh_keys import ssh_public_key
from events.values import InvalidValue
from tasks.catalogue import bounds_of
from tasks.orders import MOST_MAPPINGS, MOST_USER_DATA_BYTES

_SPACE: Final = 0x20
MOST_KEYS: Final = 16
LINES_OF_GATEWAY: Final = 2
"""Number of `authorized_keys` lines in an order that let the SSH gateway log in."""
MAX_KEYS_BYTES: Final = bounds_of("slice.apply").payload_bytes * 3 // 8
"""Upper limit of all SSH keys and the user-data of a request together, so that they fit into an order: JSON may escape
each byte as two.
"""
MIN_LEASE_SECONDS: Final = 60
MAX_LEASE_SECONDS: Final = 365 * 24 * 3600
MAX_WAIT_SECONDS: Final = 30 * 24 * 3600
MOST_PRIORITY: Final = 100
MOST_ALTERNATIVES: Final = 7
MAX_KEY_SECONDS: Final = 10 * 365 * 24 * 3600


def _decided_by(decide: Callable[[str], str]) -> AfterValidator:
    """Return a Pydantic validator that checks a field with `decide`, a function that raises `Refused`.

    The response then lists the objection of `decide` together with those of the schema.
    """

    def check(value: str) -> str:
        try:
            return decide(value)
        except Refused as refused:
            [objection] = refused.objections
            context: dict[str, Any] = {"reason": objection.message, "refusal": type(refused).__name__}
            raise PydanticCustomError(objection.code, "{reason}", context) from None

    return AfterValidator(check)


def _misfit(code: str, field: str, reason: str) -> PydanticCustomError:
    """Return the validation error of a request body with fields that contradict each other. The response names `field`
    as the field to change.
    """
    return PydanticCustomError(code, "{reason}", {"reason": reason, "field": field})


def _fit_into_an_order(keys: list[str]) -> list[str]:
    # An order is one message of bounded size (TSK-1), and the caller controls only the size of the keys.
    if (size := sum(len(key.encode()) for key in keys)) > MAX_KEYS_BYTES:
        raise InvalidValue(
            "total size of the SSH public keys in bytes", size, f"use at most {MAX_KEYS_BYTES} bytes"
        )
    return keys


def _is_user_data(text: str) -> str:
    size = len(text.encode())
    if size > MOST_USER_DATA_BYTES:
        raise InvalidValue(
            "size of the user-data in bytes", size, f"use at most {MOST_USER_DATA_BYTES} bytes"
        )
    if not text.startswith(("#cloud-config", "#!")):
        raise InvalidValue("user-data", text[:20], "begin with '#cloud-config' or '#!'")
    # Each of these characters has six bytes in an order, which is a message of bounded size.
    if unusual := sorted({each for each in text if ord(each) < _SPACE and each not in "\t\n\r"}):
        raise InvalidValue("control character of the user-data", unusual[0], "use tabs and line breaks only")
    return text


class Body(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, use_attribute_docstrings=True)


Port = Annotated[int, Field(ge=1, le=65535)]
Source = Annotated[str, AfterValidator(values.ipv4_subnet)]


class _Ingress(Body):
    slot: int = Field(default=0, ge=0, lt=values.MAX_SLOTS)
    """Index of the slot within the allocation, counted from 0."""
    sources: list[Source] = Field(default=[], max_length=16)
    """Networks from which connections are allowed; empty: all."""

    @property
    def allowed(self) -> tuple[values.Ipv4Subnet, ...]:
        return normalized_sources(values.Ipv4Subnet(each) for each in self.sources)


class OpenPort(_Ingress):
    """An ingress rule from a port of a public address to a port of the slice. If `public_port` is null, a free port is
    chosen.
    """

    kind: Literal["port"] = "port"
    protocol: Literal["tcp", "udp"] = "tcp"
    port: Port
    public_port: Port | None = None

    @property
    def requested(self) -> IngressRequest:
        return IngressRequest(
            self.slot, PortRequest(self.protocol, self.port, self.public_port), self.allowed
        )


class OpenAddress(_Ingress):
    """An ingress rule from a whole public address to the slice: all protocols and ports."""

    kind: Literal["address"] = "address"

    @property
    def requested(self) -> IngressRequest:
        return IngressRequest(self.slot, AddressRequest(), self.allowed)


def _kind(body: Any) -> Any:
    return body.get("kind", "port") if isinstance(body, dict) else getattr(body, "kind", None)


OpenIngress = Annotated[
    Annotated[OpenPort, Tag("port")] | Annotated[OpenAddress, Tag("address")], Discriminator(_kind)
]
"""Request body of `POST /v1/allocations/{allocation}/ingress`."""


class NodeAddress(Body):
    """A public address of a node: assigned to one slice as a `whole`, or to several slices port by port (`ports`)."""

    address: Annotated[str, AfterValidator(values.ipv4_address), _decided_by(host_address)]
    use: Literal["whole", "ports"]
    first_port: Port = FIRST_PORT
    last_port: Port = LAST_PORT

    @model_validator(mode="after")
    def _has_ports(self) -> Self:
        if self.first_port > self.last_port:
            reason = f"first_port {self.first_port} is greater than last_port {self.last_port}; swap them"
            raise _misfit("no_ports", "first_port", reason)
        return self


class NodeAddresses(Body):
    """Request body of `PUT /v1/nodes/{node}/public-addresses`: the complete list of the node's public addresses."""

    addresses: list[NodeAddress] = Field(max_length=256)

    @model_validator(mode="after")
    def _names_each_once(self) -> Self:
        listed = [each.address for each in self.addresses]
        if repeated := sorted({each for each in listed if listed.count(each) > 1}):
            reason = f"{', '.join(repeated)}: listed more than once; list each address once"
            raise _misfit("duplicate_address", "addresses", reason)
        return self


Price = Annotated[str, AfterValidator(values.price)]
Labels = dict[Annotated[str, Field(max_length=63)], Annotated[str, Field(max_length=255)]]


class WaitForCapacity(Body):
    """How a request waits for capacity."""

    wait_seconds: int | None = Field(default=None, ge=1, le=MAX_WAIT_SECONDS)
    """How long the request waits before the allocation fails; null: the default of the deployment."""
    priority: int = Field(default=0, ge=-MOST_PRIORITY, le=MOST_PRIORITY)
    """Requests with a higher priority are placed first. Only an admin may request a priority above 0."""


def _kind_of_wait(value: Any) -> str:
    return "object" if isinstance(value, dict | WaitForCapacity) else "boolean"


class CreateAllocation(Body):
    """Request body of `POST /v1/allocations`."""

    project: Annotated[str, AfterValidator(values.project_id)] | None = None
    """Project of the allocation; null: the only project of the caller, or `default` if it has all projects."""
    sku: Annotated[str, AfterValidator(values.sku_name)]
    alternative_skus: list[Annotated[str, AfterValidator(values.sku_name)]] = Field(
        default=[], max_length=MOST_ALTERNATIVES
    )
    """SKUs to use if no node is suitable for `sku`, in the order of preference."""
    network_mode: Annotated[str, _decided_by(network_mode_offered)] = "private-nat"
    image: Annotated[str, AfterValidator(values.image_name)] = "lab-guest"
    app_profile: Annotated[str, AfterValidator(values.app_profile_name)] | None = None
    """App profile of the workload, which must accept the fabric of the SKU; null: only that fabric is accepted."""
    ssh_authorized_keys: Annotated[
        list[Annotated[str, AfterValidator(ssh_public_key)]],
        Field(min_length=1, max_length=MOST_KEYS),
        AfterValidator(_fit_into_an_order),
    ]
    user_data: Annotated[str, AfterValidator(_is_user_data)] | None = None
    """User-data that cloud-init runs at the first boot of the slices: a cloud-config (`#cloud-config`) or a script
    (`#!`), at most 16 KiB in UTF-8. It is recorded in the ledger, so it must not contain secrets. Null: none."""
    gateway_access: bool = False
    """Whether the SSH gateway may log in to the slices: for terminals in the browser, and for SSH certificates of
    callers of the project. The operator of the gateway can then log in as well."""
    lease_seconds: int = Field(default=3600, ge=MIN_LEASE_SECONDS, le=MAX_LEASE_SECONDS)
    slot_count: int = Field(default=1, ge=1, le=values.MAX_SLOTS)
    node: Annotated[str, AfterValidator(values.node_id)] | None = None
    """The node to place all slots on, real or simulated; if null, placement chooses one."""
    ingress: list[OpenIngress] = Field(default=[], max_length=MOST_MAPPINGS)
    replace_on_failure: bool = True
    """Whether the allocation is placed on another node, once, if its bring-up fails due to a node fault."""
    labels: Labels = Field(default={}, max_length=32)
    apart_from: Labels = Field(default={}, max_length=8)
    """Labels: no node is used on which another allocation of the project with one of these labels holds a slot."""
    max_price_per_hour: Price | None = None
    """Highest price of the whole allocation per hour: SKUs with which it would cost more are not used. Null: any
    price."""
    wait_for_capacity: Annotated[
        Annotated[WaitForCapacity, Tag("object")] | Annotated[bool, Tag("boolean")],
        Discriminator(_kind_of_wait),
    ] = False
    """Whether the request waits if it is refused only because of the present state, such as for lack of free slots. The
    state of the allocation is then `waiting`, and it has no slots until it is placed."""

    @model_validator(mode="after")
    def _fits_into_an_order(self) -> Self:
        texts = [*self.ssh_authorized_keys, self.user_data or ""]
        if self.gateway_access and len(self.ssh_authorized_keys) > MOST_KEYS - LINES_OF_GATEWAY:
            reason = (
                f"gateway_access adds {LINES_OF_GATEWAY} keys to the {len(self.ssh_authorized_keys)} of the request; use at"
                f" most {MOST_KEYS - LINES_OF_GATEWAY} with it"
            )
            raise _misfit("too_many_ssh_keys", "ssh_authorized_keys", reason)
        if (size := sum(len(each.encode()) for each in texts)) > MAX_KEYS_BYTES:
            reason = f"the SSH keys and the user-data have {size} bytes together; use at most {MAX_KEYS_BYTES} bytes"
            raise _misfit("too_much_user_data", "user_data", reason)
        return self

    @model_validator(mode="after")
    def _names_each_sku_once(self) -> Self:
        listed = [self.sku, *self.alternative_skus]
        if repeated := sorted({each for each in listed if listed.count(each) > 1}):
            reason = f"{', '.join(repeated)}: listed more than once; name each SKU once in sku and alternative_skus"
            raise _misfit("duplicate_sku", "alternative_skus", reason)
        return self

    @model_validator(mode="after")
    def _has_ingress_for_its_own_slots_only(self) -> Self:
        if self.ingress and not permits_ingress(network_mode_offered(self.network_mode)):
            reason = f"network mode {self.network_mode} does not support ingress; use public-nat"
            raise _misfit("ingress_needs_public_nat", "ingress", reason)
        if beyond := [each.slot for each in self.ingress if each.slot >= self.slot_count]:
            reason = f"slot {max(beyond)} is out of range: slot_count is {self.slot_count}, and slots are counted from 0"
            raise _misfit("unknown_slot_index", "ingress", reason)
        return self


Why = Annotated[str, Field(min_length=1, max_length=500, pattern=r"^[^\x00]*$")]
"""The admin's reason for the action. It is recorded in the ledger."""


Description = Annotated[str, Field(max_length=500, pattern=r"^[^\x00]*$")]


class ReasonOnly(Body):
    """Request body of a change that needs a reason and nothing else."""

    reason: Why


class ReportFault(Body):
    """Request body of `POST /v1/allocations/{allocation}/fault`."""

    fault: Annotated[str, Field(min_length=1, max_length=500, pattern=r"^[^\x00-\x1f\x7f]*$")]
    """What is wrong with the hardware, in one line. It is recorded in the ledger and shown to admins."""


class RenewLease(Body):
    """Request body of `POST /v1/allocations/{allocation}/lease`."""

    lease_seconds: int = Field(ge=MIN_LEASE_SECONDS, le=MAX_LEASE_SECONDS)
    """Time from now until the lease ends. A lease that ends later already is not changed."""


class RequestSshCertificate(Body):
    """Request body of `POST /v1/allocations/{allocation}/ssh-certificates`."""

    public_key: Annotated[str, AfterValidator(ssh_public_key)]
    """Public key of the caller, as a line of an OpenSSH public key file."""


class ApproveSlot(Body):
    """Request body of `POST /v1/nodes/{node}/slots/{index}/approve`."""

    skus: (
        Annotated[
            list[Annotated[str, AfterValidator(values.sku_name)]],
            Field(min_length=1, max_length=32),
        ]
        | None
    ) = None
    """SKUs under which the slot is offered. Null: a new slot gets the SKU of the catalogue that uses most of
    it, and an approved slot keeps its SKUs."""


class DrainNode(Body):
    """Request body of `POST /v1/nodes/{node}/drain`."""

    reason: Why
    release_after_seconds: int | None = Field(default=None, ge=0, le=MAX_LEASE_SECONDS)
    """Time after which the allocations that still hold slots of the node are released; 0: now; null: they end by
    themselves.
    """


class MacRange(Body):
    """MAC addresses that the slots of a node can get: all from `first` to `last`, both included."""

    first: Annotated[str, AfterValidator(values.mac_address)]
    last: Annotated[str, AfterValidator(values.mac_address)]

    @model_validator(mode="after")
    def _has_a_usable_size(self) -> Self:
        size = size_of(self.pool)
        if 0 < size <= MAX_POOL:
            return self
        reason = (
            "the last MAC of the pool is lower than the first one; exchange them"
            if size < 1
            else f"the pool has {size} MACs; use at most {MAX_POOL}"
        )
        raise _misfit("invalid_value", "last", reason)

    @property
    def pool(self) -> MacPool:
        """The pool in the form that facts store."""
        return MacPool(values.MacAddress(self.first), values.MacAddress(self.last))


class ConfigureNode(Body):
    """Request body of `PUT /v1/nodes/{node}/network`. What is left out gets its default."""

    bridge: str = Field(default=DEFAULT_BRIDGE, pattern=r"^[A-Za-z0-9_.-]{1,15}$")
    """Bridge of the node, as in the settings of its agent."""
    l2_domain: str = Field(default=DEFAULT_L2_DOMAIN, pattern=r"^[a-z0-9][a-z0-9.-]{0,62}$")
    """Layer-2 domain of the node. Within a domain, no two slots have the same MAC address."""
    mac_pool: MacRange | None = None
    """Pool from which slots get their MACs; null: derived from their ids."""


class RegisterNode(Body):
    """Request body of `POST /v1/nodes`."""

    id: Annotated[str, AfterValidator(values.node_id)]


class CreateProject(Body):
    """Request body of `POST /v1/projects`."""

    id: Annotated[str, AfterValidator(values.project_id)]
    description: Description = ""


class DescribeProject(Body):
    """Request body of `PATCH /v1/projects/{project}`."""

    description: Description


class ClosePeriod(Body):
    """Request body of `POST /v1/usage/periods/{period}/close`. Both times are RFC 3339; if both are null, the period is
    the calendar month (UTC) that it is named after, such as `2026-11`.
    """

    starts_at: Annotated[str | None, Field(max_length=64), AfterValidator(checked_time)] = None
    """Begin of the period. It must be the end of the period closed before it, if there is one."""
    ends_at: Annotated[str | None, Field(max_length=64), AfterValidator(checked_time)] = None
    """End of the period, which does not contain this time."""


def recorded_actor(actor: str) -> str:
    """Return the name of a caller as the ledger records it. Raises `InvalidValue` for any other form."""
    if not any(form.fullmatch(actor) for form in (USER_ACTOR, KEY_ACTOR, SERVICE_ACCOUNT_ACTOR)):
        valid = (
            "use the form in which events name callers: user:PROVIDER/SUBJECT, service-account:ID or key:ID"
        )
        raise InvalidValue("principal", actor[:64], valid)
    if USER_ACTOR.fullmatch(actor) and not is_recorded_form(actor):
        # No token has such an actor, so the change would have no effect, and the admin would not notice.
        valid = "percent-encode only the unsafe characters of the subject; GET /v1/whoami returns the actor of a token"
        raise InvalidValue("principal", actor[:64], valid)
    return actor


Count = Annotated[int, Field(ge=0, le=2**31 - 1)]


class SetPrincipalLimits(Body):
    """Request body of `PUT /v1/principals/limits`: all limits of the caller. What is left out does not limit."""

    actor: Annotated[str, AfterValidator(recorded_actor)]
    """The caller as the ledger records it: `user:PROVIDER/SUBJECT`, `service-account:ID`, or `key:ID` for an API
    key. A rotated API key is another caller."""
    slots: Count | None = None
    price_per_hour: Price | None = None
    """Sum of the prices per hour, a decimal number in the currency of the deployment."""


class SetProjectLimits(Body):
    """Request body of `PUT /v1/projects/{project}/limits`: all limits of the project. What is left out does not
    limit.
    """

    slots: Count | None = None
    gpus: Count | None = None
    vcpus: Count | None = None
    memory_mib: Count | None = None
    public_addresses: Count | None = None
    """Number of whole public addresses."""
    public_ports: Count | None = None
    """Number of ports of public addresses."""
    waiting_requests: Count | None = None
    """Number of requests that wait for capacity; null: the default of the deployment."""
    price_per_hour: Price | None = None
    """Sum of the prices per hour, a decimal number in the currency of the deployment."""
    max_lease_seconds: Annotated[int, Field(ge=1, le=2**31 - 1)] | None = None
    """Longest time in seconds that a lease may run, counted from its request and from each renewal."""
    budget_per_month: Price | None = None
    """Price of all leases in a calendar month (UTC), a decimal number in the currency of the deployment."""


class SetReservation(Body):
    """Request body of `PUT /v1/projects/{project}/reservations/{sku}`."""

    slots: Annotated[int, Field(ge=1, le=MOST_SLOTS)]
    """Number of slots that are kept free for the project, including those that it holds."""


class Limits(Body):
    """Limits of a new API key or service account, as a part of the request body: its projects and scopes."""

    projects: list[Annotated[str, AfterValidator(values.project_id)]] = Field(default=[], max_length=64)
    """Projects to which the API key or service account is limited; empty: all projects, which the role `caller` must
    not have.
    """
    scopes: list[Annotated[Scope, Field(strict=False)]] = Field(default=[], max_length=len(Scope))
    """Scopes to which the API key or service account is limited; empty: all scopes of its role."""

    @property
    def distinct_projects(self) -> tuple[values.ProjectId, ...]:
        """The projects in the order of the request, each once."""
        return tuple(values.ProjectId(each) for each in dict.fromkeys(self.projects))

    @property
    def distinct_scopes(self) -> tuple[Scope, ...]:
        """The scopes in the order of the request, each once."""
        return tuple(dict.fromkeys(self.scopes))

    def refuse_misfit(self, role: Role) -> None:
        """Check that the limits fit a role. Raises `PydanticCustomError`."""
        if role is Role.CALLER and not self.projects:
            reason = "the role caller must be limited to at least one project; list it in 'projects'"
            raise _misfit("projects_missing", "projects", reason)
        if beyond := [each for each in self.scopes if each not in SCOPES_OF[role]]:
            reason = f"the role {role} does not have the scope {', '.join(beyond)}"
            raise _misfit("scope_beyond_role", "scopes", reason)


class CreateServiceAccount(Limits):
    """Request body of `POST /v1/service-accounts`."""

    id: Annotated[str, AfterValidator(values.service_account_id)]
    description: Description = ""
    role: Annotated[Role, Field(strict=False)]

    @model_validator(mode="after")
    def _fits_its_role(self) -> Self:
        self.refuse_misfit(self.role)
        return self


class IssueKey(Limits):
    """Request body of `POST /v1/keys`: a key has a role with limits of its own, or those of a service account."""

    name: Annotated[str, AfterValidator(values.key_name)]
    """Name of the owner: the id of the key begins with it."""
    role: Annotated[Role, Field(strict=False)] | None = None
    """Role of the key; null for a key of a service account."""
    service_account: Annotated[str, AfterValidator(values.service_account_id)] | None = None
    """Service account that requests with the key act as. The key has the role, projects and scopes of the account."""
    lifetime_seconds: int | None = Field(default=None, ge=60, le=MAX_KEY_SECONDS)
    """Time until the key expires; null: it does not expire."""

    @model_validator(mode="after")
    def _fits_its_role(self) -> Self:
        if self.service_account is None:
            if self.role is None:
                reason = "a role or a service account is required"
                raise _misfit("required", "role", reason)
            self.refuse_misfit(self.role)
        elif given := [name for name in ("role", "projects", "scopes") if getattr(self, name)]:
            reason = f"the key of a service account has the role and limits of the account; omit {', '.join(given)}"
            raise _misfit("limits_of_service_account", "service_account", reason)
        return self


class RotateKey(Body):
    """Request body of `POST /v1/keys/{key}/rotate`."""

    overlap_seconds: int = Field(default=3600, ge=0, le=30 * 24 * 3600)
    """Time for which the replaced key is still accepted."""


class StartSession(Body):
    """Request body of `POST /v1/sessions`."""

    label: Annotated[str, Field(max_length=100, pattern=r"^[^\x00]*$")] = ""
    """What the session is for, such as the name of the machine."""
    lifetime_seconds: int | None = Field(default=None, ge=60, le=MAX_KEY_SECONDS)
    """Time until the session expires; null: the maximum that the operator allows."""


class RevokePrincipal(Body):
    """Request body of `POST /v1/principals/revoke`."""

    actor: Annotated[str, AfterValidator(recorded_actor)]
    """The caller as the ledger records it: `user:PROVIDER/SUBJECT`, `service-account:ID`, or `key:ID` for an API
    key."""
    reason: Why


class RequestTask(Body):
    """Request body of `POST /v1/tasks`: `slot_id` for a task that concerns one slot, `node_id` for one of a whole
    node.
    """

    kind: Annotated[str, _decided_by(kind_requestable)]
    node_id: Annotated[str, AfterValidator(values.node_id)] | None = None
    slot_id: Annotated[str, AfterValidator(values.slot_id)] | None = None

    @model_validator(mode="after")
    def _names_either_a_slot_or_a_node(self) -> Self:
        of_slot = REQUESTABLE[self.kind]
        target, other = (self.slot_id, self.node_id) if of_slot else (self.node_id, self.slot_id)
        if target is None or other is not None:
            required, excess = ("slot_id", "node_id") if of_slot else ("node_id", "slot_id")
            reason = f"a task of kind {self.kind} requires {required} and does not accept {excess}"
            raise _misfit("invalid_target", required, reason)
        return self
