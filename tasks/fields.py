"""Validated values of `events.values` as Pydantic fields, and the base model of all wire types."""

import re
from datetime import UTC, datetime
from typing import Annotated, Final

from pydantic import AfterValidator, AwareDatetime, BaseModel, BeforeValidator, ConfigDict, Field

from events import values

NodeId = Annotated[values.NodeId, AfterValidator(values.node_id)]
SlotId = Annotated[values.SlotId, AfterValidator(values.slot_id)]
AllocationId = Annotated[values.AllocationId, AfterValidator(values.allocation_id)]
IngressId = Annotated[values.IngressId, AfterValidator(values.ingress_id)]
ImageName = Annotated[values.ImageName, AfterValidator(values.image_name)]
ImageDigest = Annotated[str, AfterValidator(values.image_digest)]
MacAddress = Annotated[values.MacAddress, AfterValidator(values.mac_address)]
PciAddress = Annotated[values.PciAddress, AfterValidator(values.pci_address)]
Ipv4Address = Annotated[values.Ipv4Address, AfterValidator(values.ipv4_address)]
Ipv4Subnet = Annotated[values.Ipv4Subnet, AfterValidator(values.ipv4_subnet)]
SshPublicKey = Annotated[values.SshPublicKey, Field(pattern=r"^[^\p{Cc}\p{Cf}\p{Zl}\p{Zp}]*$")]
"""An OpenSSH public key line, checked only for control characters. `events.ssh_keys` validates a key when an allocation
with the key is requested, and it is not validated again here: an order with a key that an earlier release recorded must
stay readable."""
InterfaceName = Annotated[str, Field(pattern=r"^[a-z][a-z0-9-]{0,14}$")]
"""Name of a link: at most 15 characters (IFNAMSIZ without the terminating zero byte)."""
_LINE: Final = 2000
Line = Annotated[str, Field(max_length=_LINE)]
Word = Annotated[str, Field(max_length=253, pattern=r"^[^\x00]*$")]
"""A name without zero bytes, because it is stored in a database column, and Postgres text cannot contain a zero byte.
"""
ShortWord = Annotated[str, Field(max_length=64, pattern=r"^[^\x00]*$")]
"""A name of at most 64 characters without zero bytes, such as the name of a link."""
Words = Annotated[str, Field(max_length=_LINE, pattern=r"^[^\x00]*$")]
"""A text of at most 2000 characters without zero bytes, such as a sentence."""
_SENTENCE: Final = 400
Sentence = Annotated[str, Field(max_length=_SENTENCE, pattern=r"^[^\p{Cc}\p{Cf}\p{Zl}\p{Zp}]*$")]
"""A piece of evidence on one line, without control characters: a report contains many of them, and the command line
shows them in rows."""
Whole = Annotated[int, Field(strict=True)]
"""An integer. A JSON `true` or a string that contains a number is refused, as the OpenAPI document states."""
Flag = Annotated[bool, Field(strict=True)]
"""A truth value; 0, 1 and texts such as `"yes"` are refused, as the OpenAPI document states."""
LARGEST_COUNT: Final = 2**31 - 1
# A field that gives a type another bound of the same kind, as `Count = Field(ge=1)`, is validated by the wider of both.
Count = Annotated[Whole, Field(ge=0, le=LARGEST_COUNT)]
PositiveCount = Annotated[Whole, Field(ge=1, le=LARGEST_COUNT)]
Port = Annotated[Whole, Field(ge=1, le=65535)]
_BEGINNING: Final = datetime(1970, 1, 1, tzinfo=UTC)
_END: Final = datetime(9999, 1, 1, tzinfo=UTC)
_ISO_DATE: Final = re.compile(r"[0-9]{4}-")


def _not_a_number(value: object) -> object:
    """Refuse a Unix time, which Pydantic accepts as a date. Raises `ValueError`."""
    if isinstance(value, datetime) or (isinstance(value, str) and _ISO_DATE.match(value)):
        return value
    raise ValueError(
        "the value is not a date and time of RFC 3339; use a form such as '2026-11-25T09:30:00Z'"
    )


# A year before 1 or after 9999 in UTC could be stored but never read again, and an unreadable event stops every reader
# of the ledger. The lower bound is 1970, where a clock that was never set begins.
# Postgres refuses offsets of 16 hours and more, which ISO 8601 permits, so the time is converted to UTC.
Moment = Annotated[
    AwareDatetime,
    Field(ge=_BEGINNING, lt=_END),
    BeforeValidator(_not_a_number),
    AfterValidator(lambda moment: moment.astimezone(UTC)),
]
"""The time of an occurrence, in UTC. A time with another zone is accepted and converted to UTC."""


def is_none(value: object) -> bool:
    """Return whether the value of a message's field is None. A field that is None is omitted from the message, because
    older readers refuse fields that they do not know.
    """
    return value is None


def is_empty(value: tuple[object, ...]) -> bool:
    """Return whether the value of a message's field is an empty list. A field with an empty list is omitted from the
    message, because older readers refuse fields that they do not know.
    """
    return not value


def is_false(value: object) -> bool:
    """Return whether the value of a message's field is False. A field that is False is omitted from the message,
    because older readers refuse fields that they do not know.
    """
    return value is False


def line(text: str) -> str:
    """Return the text, truncated to the maximum length of the field type `Line`."""
    return text[:_LINE]


def sentence(text: str) -> str:
    """Return the text on one line, truncated to the maximum length of the field type `Sentence`."""
    visible = "".join(each if each.isprintable() else " " for each in text)
    return " ".join(visible.split())[:_SENTENCE]


class Wire(BaseModel):
    """The base of all wire types, which are immutable and refuse unknown fields."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=False)
