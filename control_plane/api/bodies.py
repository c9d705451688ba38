"""What callers send. Closed and strict: an unknown field or a wrong type is refused, with every other reason."""

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

from control_plane.api.offers import image_offered_here
from control_plane.decisions.public_addresses import (
    FIRST_PORT,
    LAST_PORT,
    AddressWish,
    PortWish,
    WayWish,
    normal,
    of_a_host,
)
from control_plane.decisions.refusals import Refused
from control_plane.decisions.requests import network_mode_offered, sku_offered
from control_plane.decisions.tasks import ASKABLE, kind_askable
from events import values
from events.ssh_keys import ssh_public_key
from events.values import InvalidValue
from tasks.catalogue import bounds_of
from tasks.orders import MOST_MAPPINGS

MAX_KEYS_BYTES: Final = bounds_of("slice.apply").payload_bytes * 3 // 8
"""JSON may write each as two, and the rest of an order is small."""
MAX_LEASE_SECONDS: Final = 365 * 24 * 3600


def _decided_by(decide: Callable[[str], str]) -> AfterValidator:
    """Let a decision object to a field, so that its reason stands beside the schema's own."""

    def check(value: str) -> str:
        try:
            return decide(value)
        except Refused as refused:
            [objection] = refused.objections
            context: dict[str, Any] = {"why": objection.message, "refusal": type(refused).__name__}
            raise PydanticCustomError(objection.code, "{why}", context) from None

    return AfterValidator(check)


def _fit_into_an_order(keys: list[str]) -> list[str]:
    # An order goes to its node in one bounded message (TSK-1), and the keys are all in it that a caller can stretch.
    if sum(len(key.encode()) for key in keys) > MAX_KEYS_BYTES:
        raise InvalidValue("list of SSH public keys", len(keys), f"at most {MAX_KEYS_BYTES} bytes together")
    return keys


class Body(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


Port = Annotated[int, Field(ge=1, le=65535)]
Source = Annotated[str, AfterValidator(values.ipv4_subnet)]


class _WayIn(Body):
    slot: int = Field(default=0, ge=0, lt=values.MAX_SLOTS)
    """Of the allocation, counted from 0."""
    sources: list[Source] = Field(default=[], max_length=16)
    """Networks that may come; empty: everybody."""

    @property
    def allowed(self) -> tuple[values.Ipv4Subnet, ...]:
        return normal(values.Ipv4Subnet(each) for each in self.sources)


class OpenPort(_WayIn):
    """A port of the slice, by a port of a public address; any that is free unless it is named."""

    kind: Literal["port"] = "port"
    protocol: Literal["tcp", "udp"] = "tcp"
    port: Port
    public_port: Port | None = None

    @property
    def wish(self) -> WayWish:
        return WayWish(self.slot, PortWish(self.protocol, self.port, self.public_port), self.allowed)


class OpenAddress(_WayIn):
    """All of the slice, by a public address of its own."""

    kind: Literal["address"] = "address"

    @property
    def wish(self) -> WayWish:
        return WayWish(self.slot, AddressWish(), self.allowed)


def _kind(body: Any) -> Any:
    return body.get("kind", "port") if isinstance(body, dict) else getattr(body, "kind", None)


OpenWay = Annotated[
    Annotated[OpenPort, Tag("port")] | Annotated[OpenAddress, Tag("address")], Discriminator(_kind)
]
"""`POST /v1/allocations/{allocation}/ingress`."""


class NodeAddress(Body):
    """A public address of a node: given out as a `whole`, or one of its `ports` after the other."""

    address: Annotated[str, AfterValidator(values.ipv4_address), _decided_by(of_a_host)]
    use: Literal["whole", "ports"]
    first_port: Port = FIRST_PORT
    last_port: Port = LAST_PORT

    @model_validator(mode="after")
    def _has_ports(self) -> Self:
        if self.first_port > self.last_port:
            why = f"there is no port from {self.first_port} to {self.last_port}"
            raise PydanticCustomError("no_ports", "{why}", {"why": why})
        return self


class NodeAddresses(Body):
    """`PUT /v1/nodes/{node}/public-addresses`: all that it is to have."""

    addresses: list[NodeAddress] = Field(max_length=256)

    @model_validator(mode="after")
    def _names_each_once(self) -> Self:
        named = [each.address for each in self.addresses]
        if twice := sorted({each for each in named if named.count(each) > 1}):
            why = f"{', '.join(twice)}: named more than once"
            raise PydanticCustomError("address_twice", "{why}", {"why": why})
        return self


class CreateAllocation(Body):
    """`POST /v1/allocations`."""

    project: Annotated[str, AfterValidator(values.project_id)] = "default"
    sku: Annotated[str, _decided_by(sku_offered)]
    network_mode: Annotated[str, _decided_by(network_mode_offered)] = "private-nat"
    image: Annotated[str, _decided_by(image_offered_here)] = "lab-guest"
    ssh_authorized_keys: Annotated[
        list[Annotated[str, AfterValidator(ssh_public_key)]],
        Field(min_length=1, max_length=16),
        AfterValidator(_fit_into_an_order),
    ]
    lease_seconds: int = Field(default=3600, ge=60, le=MAX_LEASE_SECONDS)
    slot_count: int = Field(default=1, ge=1, le=values.MAX_SLOTS)
    node: Annotated[str, AfterValidator(values.node_id)] | None = None
    """The node to place all slots on, real or simulated; if null, placement chooses one."""
    ingress: list[OpenWay] = Field(default=[], max_length=MOST_MAPPINGS)
    replace_on_failure: bool = True
    """Whether the allocation is placed on another node, once, if its bring-up fails due to a node fault."""
    labels: dict[Annotated[str, Field(max_length=63)], Annotated[str, Field(max_length=255)]] = Field(
        default={}, max_length=32
    )

    @model_validator(mode="after")
    def _has_ways_in_to_its_own_slots(self) -> Self:
        if self.ingress and self.network_mode != "public-nat":
            why = f"{self.network_mode} has no ways in from outside, and public-nat has"
            raise PydanticCustomError("ingress_needs_public_nat", "{why}", {"why": why})
        if beyond := [each.slot for each in self.ingress if each.slot >= self.slot_count]:
            why = f"{self.slot_count} slots are asked for, counted from 0, and not slot {max(beyond)}"
            raise PydanticCustomError("no_such_slot", "{why}", {"why": why})
        return self


Why = Annotated[str, Field(min_length=1, max_length=500, pattern=r"^[^\x00]*$")]
"""For the record, in the admin's words."""


class RevokeNode(Body):
    """`POST /v1/nodes/{node}/revoke`."""

    why: Why


class BreakGlass(Body):
    """`POST /v1/nodes/{node}/slots/{index}/break-glass`."""

    why: Why


class Readmit(Body):
    """Request body of `POST /v1/nodes/{node}/readmit` and `POST /v1/nodes/{node}/slots/{index}/readmit`."""

    why: Why


class ExpectNode(Body):
    """`POST /v1/nodes`."""

    id: Annotated[str, AfterValidator(values.node_id)]


class AskTask(Body):
    """`POST /v1/tasks`: a slot for what is about a slot, a node for what is about a whole host."""

    kind: Annotated[str, _decided_by(kind_askable)]
    node_id: Annotated[str, AfterValidator(values.node_id)] | None = None
    slot_id: Annotated[str, AfterValidator(values.slot_id)] | None = None

    @model_validator(mode="after")
    def _names_one_place(self) -> Self:
        of_slot = ASKABLE[self.kind]
        named, other = (self.slot_id, self.node_id) if of_slot else (self.node_id, self.slot_id)
        if named is None or other is not None:
            wanted = "slot_id" if of_slot else "node_id"
            raise PydanticCustomError(
                "wrong_place", "{why}", {"why": f"{self.kind} takes {wanted}, and that alone"}
            )
        return self
