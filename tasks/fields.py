"""The checked values of `events.values` as Pydantic fields, and the model every wire type starts from."""

from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from events import values
from events.ssh_keys import ssh_public_key

NodeId = Annotated[values.NodeId, AfterValidator(values.node_id)]
SlotId = Annotated[values.SlotId, AfterValidator(values.slot_id)]
AllocationId = Annotated[values.AllocationId, AfterValidator(values.allocation_id)]
ImageName = Annotated[values.ImageName, AfterValidator(values.image_name)]
MacAddress = Annotated[values.MacAddress, AfterValidator(values.mac_address)]
Ipv4Address = Annotated[values.Ipv4Address, AfterValidator(values.ipv4_address)]
Ipv4Subnet = Annotated[values.Ipv4Subnet, AfterValidator(values.ipv4_subnet)]
SshPublicKey = Annotated[values.SshPublicKey, AfterValidator(ssh_public_key)]
InterfaceName = Annotated[str, Field(pattern=r"^[a-z][a-z0-9-]{0,14}$")]
"""Name of a link: at most 15 characters (IFNAMSIZ less the closing zero)."""
Line = Annotated[str, Field(max_length=2000)]


class Wire(BaseModel):
    """Frozen and closed: an unknown field is refused, never ignored."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=False)
