"""Orders for slots of `lab-a`, in the form in which the control plane sends them."""

from datetime import UTC, datetime
from uuid import UUID, uuid5

from events.values import NodeId, allocation_of, image_name, ingress_of, node_id, slot_id
from tasks.orders import (
    ApplySlice,
    Machine,
    Mapping,
    Order,
    PortMapping,
    Readiness,
    RemoveSlice,
    SliceNetwork,
    StopSlice,
    Token,
)

NODE: NodeId = node_id("lab-a")
KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJUNhMTvfjLQo4LVPLtj+JwKLEfEyHSmnjEdHhkqFqP7 test"
_NAMES = UUID("0190f7a0-0000-7000-8000-000000000000")


def network(index: int = 0, rate: int | None = None) -> SliceNetwork:
    return SliceNetwork(
        bridge="br-slice",
        mac_address=f"52:54:00:01:00:{index:02x}",
        private_ip=f"10.100.1.{10 + index}",
        subnet="10.100.1.0/24",
        gateway="10.100.1.1",
        rate_mbit=rate,
    )


def apply(
    position: int = 7,
    *,
    index: int = 0,
    epoch: int = 1,
    memory: int = 96,
    deadline: int = 20,
    image: str = "lab-guest",
    ingress: tuple[Mapping, ...] = (),
    rate: int | None = None,
    key: str = KEY,
    port: int = 22,
    banner: str = "SSH-",
) -> Order:
    machine = Machine(
        vcpus=1, memory_mib=memory, image=image_name(image), hostname="guest", ssh_authorized_keys=(key,)
    )
    readiness = Readiness(port=port, banner=banner, deadline_seconds=deadline)
    body = ApplySlice(network=network(index, rate), machine=machine, readiness=readiness, ingress=ingress)
    return _order(body, position, index, epoch)


def ssh_ingress(public_port: int = 20022, address: str = "203.0.113.7") -> Mapping:
    """Return an ingress rule from a public port to port 22 of the slice."""
    return PortMapping(
        ingress_id=ingress_of(uuid5(_NAMES, f"{address} {public_port}")),
        public_address=address,
        sources=(),
        protocol="tcp",
        public_port=public_port,
        port=22,
    )


def remove(position: int = 9, *, index: int = 0, epoch: int = 1) -> Order:
    return _order(RemoveSlice(network=network(index)), position, index, epoch)


def stop(position: int = 8, *, index: int = 0, epoch: int = 1, grace: int = 5) -> Order:
    return _order(StopSlice(network=network(index), grace_seconds=grace), position, index, epoch)


def _order(body: ApplySlice | StopSlice | RemoveSlice, position: int, index: int, epoch: int) -> Order:
    return Order(
        order_id=uuid5(_NAMES, f"{index} {epoch} {position}"),
        node_id=NODE,
        slot_id=slot_id(f"{NODE}/{index}"),
        allocation_id=allocation_of(_NAMES),
        token=Token(epoch, position),
        issued_at=datetime(2025, 1, 1, tzinfo=UTC),
        correlation_id=_NAMES,
        causation_id=_NAMES,
        body=body,
    )
