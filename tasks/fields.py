"""The checked values of `events.values` as Pydantic fields, and the model every wire type starts from."""

from datetime import UTC, datetime
from typing import Annotated, Final

from pydantic import AfterValidator, AwareDatetime, BaseModel, ConfigDict, Field

from events import values
from events.ssh_keys import ssh_public_key

NodeId = Annotated[values.NodeId, AfterValidator(values.node_id)]
SlotId = Annotated[values.SlotId, AfterValidator(values.slot_id)]
AllocationId = Annotated[values.AllocationId, AfterValidator(values.allocation_id)]
IngressId = Annotated[values.IngressId, AfterValidator(values.ingress_id)]
ImageName = Annotated[values.ImageName, AfterValidator(values.image_name)]
MacAddress = Annotated[values.MacAddress, AfterValidator(values.mac_address)]
PciAddress = Annotated[values.PciAddress, AfterValidator(values.pci_address)]
Ipv4Address = Annotated[values.Ipv4Address, AfterValidator(values.ipv4_address)]
Ipv4Subnet = Annotated[values.Ipv4Subnet, AfterValidator(values.ipv4_subnet)]
SshPublicKey = Annotated[values.SshPublicKey, AfterValidator(ssh_public_key)]
InterfaceName = Annotated[str, Field(pattern=r"^[a-z][a-z0-9-]{0,14}$")]
"""Name of a link: at most 15 characters (IFNAMSIZ less the closing zero)."""
_LINE: Final = 2000
Line = Annotated[str, Field(max_length=_LINE)]
Word = Annotated[str, Field(max_length=253, pattern=r"^[^\x00]*$")]
"""A name that will stand in a column of its own: Postgres has no text with a zero byte."""
Words = Annotated[str, Field(max_length=_LINE, pattern=r"^[^\x00]*$")]
"""The same, at the length of a sentence."""
_SENTENCE: Final = 400
Sentence = Annotated[str, Field(max_length=_SENTENCE, pattern=r"^[^\p{Cc}\p{Cf}\p{Zl}\p{Zp}]*$")]
"""A piece of evidence, on one line and without control characters: many of them stand in one report, and people read
them in rows."""
Count = Annotated[int, Field(ge=0, le=2**31 - 1)]
Port = Annotated[int, Field(ge=1, le=65535)]
_BEGINNING: Final = datetime(1970, 1, 1, tzinfo=UTC)
_END: Final = datetime(9999, 1, 1, tzinfo=UTC)
# A year before 1 or after 9999 in UTC can be stored and never be read again, and what cannot be read stops every
# reader of the ledger. A clock that was never set stands at the beginning of 1970.
# Postgres refuses offsets of 16 hours and more, which ISO 8601 permits: the moment is converted to UTC.
Moment = Annotated[
    AwareDatetime, Field(ge=_BEGINNING, lt=_END), AfterValidator(lambda moment: moment.astimezone(UTC))
]
"""When something happened, in UTC; sent with any zone."""


def is_none(told: object) -> bool:
    """For a field that is left out of a message where there is none: who does not know a field refuses it."""
    return told is None


def is_empty(told: tuple[object, ...]) -> bool:
    """The same, of a field with several."""
    return not told


def line(text: str) -> str:
    """As much of a text as a `Line` holds."""
    return text[:_LINE]


def sentence(text: str) -> str:
    """As much of a text as a `Sentence` holds, on one line."""
    visible = "".join(each if each.isprintable() else " " for each in text)
    return " ".join(visible.split())[:_SENTENCE]


class Wire(BaseModel):
    """Frozen and closed: an unknown field is refused, never ignored."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=False)
