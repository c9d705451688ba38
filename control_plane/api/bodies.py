"""What callers send. Closed and strict: an unknown field or a wrong type is refused, with every other reason."""

from collections.abc import Callable
from typing import Annotated, Any, Final, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from control_plane.decisions.refusals import Refused
from control_plane.decisions.requests import image_offered, network_mode_offered, sku_offered
from control_plane.decisions.tasks import ASKABLE, kind_askable
from events import values
from events.ssh_keys import ssh_public_key
from events.values import InvalidValue
from tasks.catalogue import bounds_of

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


class CreateAllocation(Body):
    """`POST /v1/allocations`."""

    project: Annotated[str, AfterValidator(values.project_id)] = "default"
    sku: Annotated[str, _decided_by(sku_offered)]
    network_mode: Annotated[str, _decided_by(network_mode_offered)] = "private-nat"
    image: Annotated[str, _decided_by(image_offered)] = "lab-guest"
    ssh_authorized_keys: Annotated[
        list[Annotated[str, AfterValidator(ssh_public_key)]],
        Field(min_length=1, max_length=16),
        AfterValidator(_fit_into_an_order),
    ]
    lease_seconds: int = Field(default=3600, ge=60, le=MAX_LEASE_SECONDS)
    slot_count: int = Field(default=1, ge=1, le=values.MAX_SLOTS)
    labels: dict[Annotated[str, Field(max_length=63)], Annotated[str, Field(max_length=255)]] = Field(
        default={}, max_length=32
    )


Why = Annotated[str, Field(min_length=1, max_length=500, pattern=r"^[^\x00]*$")]
"""For the record, in the admin's words."""


class RevokeNode(Body):
    """`POST /v1/nodes/{node}/revoke`."""

    why: Why


class BreakGlass(Body):
    """`POST /v1/nodes/{node}/slots/{index}/break-glass`."""

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
