"""Ids and values of the domain, each validated once, where it enters the program.

Every kind is a `NewType`, so that mypy distinguishes a slot from a node at no run-time cost. Values that are read from
the ledger are not validated again. The function with the name of the type is the only way to make a value from outside
input; it raises `InvalidValue`, which names the value, the kind and the reason.
"""

import ipaddress
import re
from functools import lru_cache
from hashlib import sha256
from typing import Final, Literal, NewType
from uuid import UUID

import uuid_utils.compat

NodeId = NewType("NodeId", str)
"""Name of a node, a DNS label of at most 31 characters that starts with a letter."""
SlotId = NewType("SlotId", str)
"""Id of a slot as `<node>/<index>`."""
SlotIndex = NewType("SlotIndex", int)
"""Position of a slot on its node, 0 to 63."""
AllocationId = NewType("AllocationId", str)
"""`alc-` and a UUIDv7 as 26 characters of Crockford's base32, lower case."""
IngressId = NewType("IngressId", str)
"""`ing-` and a UUIDv7, in the same encoding as an allocation's id."""
ProjectId = NewType("ProjectId", str)
ServiceAccountId = NewType("ServiceAccountId", str)
SessionId = NewType("SessionId", str)
"""Id of a caller's session: `ses-` and a UUIDv7, in the same encoding as an allocation's id."""
ConsoleId = NewType("ConsoleId", str)
"""Id of a console session: `con-` and a UUIDv7, in the same encoding as an allocation's id."""
SkuName = NewType("SkuName", str)
ImageName = NewType("ImageName", str)
AppProfileName = NewType("AppProfileName", str)
PeriodName = NewType("PeriodName", str)
"""Name of a billing period, such as `2026-11`."""
StreamId = NewType("StreamId", str)
MacAddress = NewType("MacAddress", str)
"""Unicast EUI-48, lower case, colon separated."""
PciAddress = NewType("PciAddress", str)
"""Domain, bus, device and function of a PCI function as sysfs writes them, e.g. `0000:1b:00.0`."""
Ipv4Address = NewType("Ipv4Address", str)
Ipv4Subnet = NewType("Ipv4Subnet", str)
"""Network in CIDR form with no host bits, e.g. `10.100.1.0/24`."""
SshPublicKey = NewType("SshPublicKey", str)
"""One OpenSSH public key line (RFC 4253 blob, base64) with an optional comment."""
Position = NewType("Position", int)
"""Position of an event in the ledger's total order; 0 is before the first event. Positions are not dense."""
Epoch = NewType("Epoch", int)

NetworkMode = Literal["private-nat", "public-nat"]
"""How slices are connected. Closed: every match on it ends in `assert_never`, in the control plane and on the node, so
that a new mode does not type-check until it is handled everywhere."""
EntryKind = Literal["sku", "image", "app_profile"]
"""The kinds of entries in the catalogue."""
Fabric = Literal["ib", "roce", "ethernet", "none"]
"""Workload fabric (ALC-6): InfiniBand, RDMA over converged Ethernet, Ethernet without RDMA, or none."""

LABEL: Final = re.compile(r"[a-z](?:[a-z0-9-]{0,29}[a-z0-9])?")
_MAC: Final = re.compile(r"[0-9a-f]{2}(?::[0-9a-f]{2}){5}")
_BYTE: Final = r"(?:25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"
_IPV4: Final = re.compile(rf"{_BYTE}(?:\.{_BYTE}){{3}}")
_PCI: Final = re.compile(r"(?:[0-9a-f]{4}|[1-9a-f][0-9a-f]{4,7}):[0-9a-f]{2}:[01][0-9a-f]\.[0-7]")
_SKU: Final = re.compile(r"[a-z][a-z0-9]*(?:[.-][a-z0-9]+)*")
_UUID: Final = r"[0-7][0-9a-hjkmnp-tv-z]{25}"
_ALLOCATION: Final = re.compile(rf"alc-{_UUID}")
_INGRESS: Final = re.compile(rf"ing-{_UUID}")
_SESSION: Final = re.compile(rf"ses-{_UUID}")
_CONSOLE: Final = re.compile(rf"con-{_UUID}")
_PRICE: Final = re.compile(r"(?:0|[1-9][0-9]{0,8})(?:\.[0-9]{1,6})?")
_DIGEST: Final = re.compile(r"sha256:[0-9a-f]{64}")
_USER: Final = re.compile(r"[a-z_][a-z0-9_-]{0,31}")
_PERIOD: Final = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,29}[a-z0-9])?")
OPEN_PERIOD: Final = "open"
"""Name with which requests refer to the time after the last closed billing period. No period has this name."""
_CROCKFORD: Final = "0123456789abcdefghjkmnpqrstvwxyz"
_BASE32: Final = str.maketrans(_CROCKFORD, "0123456789abcdefghijklmnopqrstuv")
_MAX_SKU: Final = 63
MAX_SLOTS: Final = 64


class InvalidValue(ValueError):
    """A value that is invalid for its kind; `reason` explains the valid form to the user."""

    def __init__(self, kind: str, raw: object, reason: str) -> None:
        super().__init__(f"{raw!r} is not a valid {kind}: {reason}")
        self.kind, self.raw, self.reason = kind, raw, reason


def _label(kind: str, raw: str) -> str:
    if not LABEL.fullmatch(raw):
        raise InvalidValue(
            kind,
            raw,
            "use 1 to 31 characters of a-z, 0-9 and '-', starting with a letter and not ending in '-'",
        )
    return raw


def node_id(raw: str) -> NodeId:
    return NodeId(_label("node id", raw))


def period_name(raw: str) -> PeriodName:
    """Return the name of a billing period. Raises `InvalidValue`."""
    if not _PERIOD.fullmatch(raw) or raw == OPEN_PERIOD:
        valid = f"use 1 to 31 characters of a-z, 0-9 and '-', such as 2026-11, and not {OPEN_PERIOD!r}"
        raise InvalidValue("name of a billing period", raw[:64], valid)
    return PeriodName(raw)


def project_id(raw: str) -> ProjectId:
    return ProjectId(_label("project id", raw))


def service_account_id(raw: str) -> ServiceAccountId:
    return ServiceAccountId(_label("service account id", raw))


def key_name(raw: str) -> str:
    return _label("name of a key", raw)


def issuer_name(raw: str) -> str:
    return _label("name of an identity provider", raw)


def image_name(raw: str) -> ImageName:
    return ImageName(_label("image name", raw))


def sku_name(raw: str) -> SkuName:
    if len(raw) > _MAX_SKU or not _SKU.fullmatch(raw):
        raise InvalidValue("SKU", raw, "use words of a-z and 0-9 joined by '.' or '-', such as lab.small")
    return SkuName(raw)


def app_profile_name(raw: str) -> AppProfileName:
    return AppProfileName(_label("app profile name", raw))


def price(raw: str) -> str:
    if not _PRICE.fullmatch(raw):
        valid = "use a non-negative decimal number with at most 9 digits before and 6 after the point, such as 2.50"
        raise InvalidValue("price", raw, valid)
    return raw


def image_digest(raw: str) -> str:
    if not _DIGEST.fullmatch(raw):
        raise InvalidValue("image digest", raw, "use 'sha256:' and 64 lower-case hexadecimal digits")
    return raw


def user_name(raw: str) -> str:
    if not _USER.fullmatch(raw):
        valid = "use 1 to 32 characters of a-z, 0-9, '_' and '-', starting with a letter or '_'"
        raise InvalidValue("user name", raw, valid)
    return raw


def slot_index(raw: int) -> SlotIndex:
    if not 0 <= raw < MAX_SLOTS:
        raise InvalidValue("slot index", raw, f"use an index from 0 to {MAX_SLOTS - 1}")
    return SlotIndex(raw)


def slot_id(raw: str) -> SlotId:
    node, slash, index = raw.partition("/")
    if not slash or not index.isascii() or not index.isdigit() or str(int(index)) != index:
        raise InvalidValue("slot id", raw, "use a node id, a slash and an index, such as lab-a/0")
    return slot_of(node_id(node), slot_index(int(index)))


def slot_of(node: NodeId, index: SlotIndex) -> SlotId:
    return SlotId(f"{node}/{index}")


def node_of(slot: SlotId) -> NodeId:
    return NodeId(slot.partition("/")[0])


def index_of(slot: SlotId) -> SlotIndex:
    return SlotIndex(int(slot.partition("/")[2]))


def allocation_id(raw: str) -> AllocationId:
    if not _ALLOCATION.fullmatch(raw):
        raise InvalidValue("allocation id", raw, "use 'alc-' and 26 characters of lower-case base32")
    return AllocationId(raw)


def allocation_of(uuid: UUID) -> AllocationId:
    """Return the allocation id that encodes the UUID; `correlation_of` is the inverse function."""
    return AllocationId(f"alc-{_digits(uuid)}")


def correlation_of(allocation: AllocationId) -> UUID:
    """Return the UUID encoded in an allocation's id, which is the correlation id of all its events."""
    return UUID(int=int(allocation.removeprefix("alc-").translate(_BASE32), 32))


def ingress_id(raw: str) -> IngressId:
    if not _INGRESS.fullmatch(raw):
        raise InvalidValue("ingress id", raw, "use 'ing-' and 26 characters of lower-case base32")
    return IngressId(raw)


def ingress_of(uuid: UUID) -> IngressId:
    """Return the ingress id that encodes a UUID."""
    return IngressId(f"ing-{_digits(uuid)}")


def session_id(raw: str) -> SessionId:
    if not _SESSION.fullmatch(raw):
        raise InvalidValue("session id", raw, "use 'ses-' and 26 characters of lower-case base32")
    return SessionId(raw)


def session_of(uuid: UUID) -> SessionId:
    """Return the session id that encodes a UUID."""
    return SessionId(f"ses-{_digits(uuid)}")


def console_id(raw: str) -> ConsoleId:
    if not _CONSOLE.fullmatch(raw):
        raise InvalidValue("console id", raw, "use 'con-' and 26 characters of lower-case base32")
    return ConsoleId(raw)


def console_of(uuid: UUID) -> ConsoleId:
    """Return the console session id that encodes a UUID."""
    return ConsoleId(f"con-{_digits(uuid)}")


def _digits(uuid: UUID) -> str:
    return "".join(_CROCKFORD[(uuid.int >> shift) & 31] for shift in range(125, -1, -5))


def new_uuid() -> UUID:
    """Return a UUIDv7 (RFC 9562): time-ordered, so that new ids are adjacent in an index."""
    return uuid_utils.compat.uuid7()


def mac_address(raw: str) -> MacAddress:
    mac = raw.lower()
    if not _MAC.fullmatch(mac):
        valid = "use six pairs of hexadecimal digits joined by ':', such as 52:54:00:12:34:56"
        raise InvalidValue("MAC address", raw, valid)
    if int(mac[:2], 16) & 1:
        raise InvalidValue(
            "MAC address", raw, "the multicast bit of the MAC address is set; use a unicast address"
        )
    if mac == "00:00:00:00:00:00":
        raise InvalidValue("MAC address", raw, "the MAC address of all zeros is reserved; use another")
    return MacAddress(mac)


def pci_address(raw: str) -> PciAddress:
    address = raw.lower()
    if not _PCI.fullmatch(address):
        raise InvalidValue(
            "PCI address", raw, "use domain, bus, device and function in hexadecimal, such as 0000:1b:00.0"
        )
    return PciAddress(address)


def ipv4_address(raw: str) -> Ipv4Address:
    if _IPV4.fullmatch(raw):
        return Ipv4Address(raw)
    try:
        return Ipv4Address(str(ipaddress.IPv4Address(raw)))
    except ValueError as error:
        raise InvalidValue("IPv4 address", raw, str(error)) from None


@lru_cache(maxsize=8192)  # one subnet per node, and each order of the node contains it
def ipv4_subnet(raw: str) -> Ipv4Subnet:
    try:
        return Ipv4Subnet(str(ipaddress.IPv4Network(raw)))
    except ValueError as error:
        raise InvalidValue("IPv4 subnet", raw, str(error)) from None


def stream_of_node(node: NodeId) -> StreamId:
    return StreamId(f"node-{node}")


def stream_of_slot(slot: SlotId) -> StreamId:
    return StreamId(f"slot-{slot}")


def stream_of_allocation(allocation: AllocationId) -> StreamId:
    return StreamId(f"allocation-{allocation}")


def stream_of_projection(projection: str) -> StreamId:
    return StreamId(f"projection-{projection}")


def stream_of_project(project: ProjectId) -> StreamId:
    return StreamId(f"project-{project}")


def stream_of_billing() -> StreamId:
    """Return the stream of all billing periods."""
    return StreamId("billing")


def stream_of_entry(kind: EntryKind, name: str) -> StreamId:
    """Return the stream of an entry in the catalogue."""
    return StreamId(f"{kind}-{name}")


def stream_of_service_account(account: ServiceAccountId) -> StreamId:
    return StreamId(f"service-account-{account}")


def stream_of_session(session: SessionId) -> StreamId:
    return StreamId(f"session-{session}")


def stream_of_console(console: ConsoleId) -> StreamId:
    return StreamId(f"console-{console}")


def stream_of_ssh_certificate(serial: int) -> StreamId:
    return StreamId(f"ssh-certificate-{serial}")


def stream_of_key(key_id: str) -> StreamId:
    return StreamId(f"key-{key_id}")


def stream_of_principal(actor: str) -> StreamId:
    """Return the stream of a principal. A subject may have characters that the name of a stream cannot have."""
    return StreamId(f"principal-{sha256(actor.encode()).hexdigest()}")


def stream_of_task(task: UUID) -> StreamId:
    return StreamId(f"task-{task}")
