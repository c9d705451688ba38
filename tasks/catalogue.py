"""Every task there is, each with its bounds, in one declaration (TSK-1, TSK-2).

Two sorts: an *order* says what a slot shall carry from now on, an *operation* is done once. The catalogue is closed:
what is not in it is refused on both sides. `docs/tasks.md` is made of it. A type's version rises when its shape does; a
node announces the versions that it speaks, and nobody can ask another operation of it.

Every bound is read by somebody: `payload_bytes` by who sends and who receives (`tasks.wire`, `tasks.reading`),
`time_limit` by the node and by its tasks' deadlines, `maximum_age` by who signs, `credit` by who sends, `retries` by
the decision that a try failed.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from types import MappingProxyType
from typing import Final, Literal

from pydantic import BaseModel

from tasks import operations as op
from tasks.orders import ApplySlice, RemoveSlice, StopSlice
from tasks.reasons import RefusalCode, SliceFailureCode, codes
from tasks.reports import SliceFailed, SliceReady, SliceRemains, SliceRemoved, SliceStopped

_KIB: Final = 1024
REFUSALS: Final = codes(RefusalCode)
"""Codes with which a node refuses a task of any kind, before any effect (`tasks.reasons.RefusalCode`)."""

Lane = Literal["orders", "operations", "cancels"]
"""Tasks that share a node's credit. Cancels have their own: what they are to end must not keep them waiting."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """How much of everything a task may take."""

    time_limit: timedelta
    """How long it may run on the node, waiting for its slot included."""
    retries: int
    """How often it is tried again, as a new operation from the log, after a failure that may pass."""
    maximum_age: timedelta
    """From the moment of sending to the last moment at which a node begins it. Each sending begins anew."""
    payload_bytes: int
    """Of its JSON in UTF-8, unsigned."""
    lane: Lane
    """Whose credit it uses."""

    @property
    def credit(self) -> int:
        """How many tasks of its lane a node may have in its queue and in hand."""
        return CREDIT[self.lane]


CREDIT: Final[Mapping[Lane, int]] = MappingProxyType({"orders": 64, "operations": 8, "cancels": 8})
"""How many tasks of each lane a node may have in its queue and in hand."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskType:
    """One entry of the catalogue."""

    body: type[BaseModel]
    version: int
    serves: str
    """The requirement, and what of it."""
    results: tuple[type[BaseModel], ...]
    """How it ends well."""
    failures: tuple[str, ...]
    """Codes of the reasons with which it ends badly after it began."""
    ends_badly_as: type[BaseModel] | None = None
    """An order's report of such an end; an operation's is `OperationFailed`."""
    bounds: Bounds

    @property
    def kind(self) -> str:
        """Its name in the queue: the actor's."""
        kind: str = self.body.model_fields["kind"].default
        return kind

    @property
    def announced(self) -> str:
        """How a node says that it speaks it."""
        return f"{self.kind}/{self.version}"

    @property
    def passing(self) -> frozenset[str]:
        """Those of `failures` after which trying again may help."""
        return _MAY_PASS.intersection(self.failures) if self.bounds.retries else frozenset()


class NotInCatalogue(LookupError):
    """There is no task of this kind."""

    def __init__(self, kind: str) -> None:
        super().__init__(f"there is no task {kind[:100]!r}")
        self.kind = kind


_MAY_PASS: Final = frozenset({"host_unreadable", "step_refused", "busy", "leftovers"})

_ORDER: Final = Bounds(
    # A slice may take an hour to get ready, and waits for the one before it to halt.
    time_limit=timedelta(hours=2),
    retries=0,
    maximum_age=timedelta(hours=1),
    payload_bytes=64 * _KIB,
    lane="orders",
)
_ONCE: Final = Bounds(
    time_limit=timedelta(seconds=60),
    retries=2,
    maximum_age=timedelta(minutes=5),
    # An order, whole, and what stands around it.
    payload_bytes=66 * _KIB,
    lane="operations",
)
_BARE: Final = Bounds(
    time_limit=timedelta(seconds=60),
    retries=2,
    maximum_age=timedelta(minutes=5),
    payload_bytes=2 * _KIB,
    lane="operations",
)
_WATCH: Final = Bounds(
    time_limit=timedelta(hours=1, minutes=5),
    retries=0,
    maximum_age=timedelta(minutes=5),
    payload_bytes=66 * _KIB,
    lane="operations",
)
_CANCEL: Final = Bounds(
    time_limit=timedelta(seconds=10),
    retries=0,
    maximum_age=timedelta(minutes=5),
    payload_bytes=2 * _KIB,
    lane="cancels",
)
_ANY: Final = ("busy", "broke", "cancelled", "time_limit")
_LOOK: Final = (*_ANY, "host_unreadable")
_MEND: Final = (*_LOOK, "superseded", "step_refused", "not_wanted")

TYPES: Final = (
    TaskType(
        body=ApplySlice,
        version=1,
        serves="TSK-2: start the VM, with its vNIC, port, lease and exposure",
        results=(SliceReady,),
        failures=codes(SliceFailureCode),
        ends_badly_as=SliceFailed,
        bounds=_ORDER,
    ),
    TaskType(
        body=StopSlice,
        version=1,
        serves="TSK-2: stop the VM, and remove its exposure",
        results=(SliceStopped,),
        failures=(),
        ends_badly_as=SliceRemains,
        bounds=_ORDER,
    ),
    TaskType(
        body=RemoveSlice,
        version=1,
        serves="TSK-2: remove exposure and lease on release",
        results=(SliceRemoved,),
        failures=(),
        ends_badly_as=SliceRemains,
        bounds=_ORDER,
    ),
    TaskType(
        body=op.NodeVerify,
        version=1,
        serves="TSK-2: verify prerequisites (OVS, BF3, VF, IP forwarding, NAT)",
        results=(op.NodeVerified,),
        failures=(*_ANY, "host_unreadable"),
        bounds=_BARE,
    ),
    TaskType(
        body=op.VnicAttach,
        version=1,
        serves="TSK-2: attach or validate the vNIC",
        results=(op.VnicAttached,),
        failures=_MEND,
        bounds=_ONCE,
    ),
    TaskType(
        body=op.PortReconcile,
        version=1,
        serves="TSK-2: reconcile the OVS port",
        results=(op.PortReconciled,),
        failures=_MEND,
        bounds=_ONCE,
    ),
    TaskType(
        body=op.LeaseApply,
        version=1,
        serves="TSK-2: apply the MAC/IP lease",
        results=(op.LeaseApplied,),
        failures=_MEND,
        bounds=_ONCE,
    ),
    TaskType(
        body=op.ExposureApply,
        version=1,
        serves="TSK-2: apply NAT, firewall, proxy or overlay exposure",
        results=(op.ExposureApplied,),
        failures=_MEND,
        bounds=_ONCE,
    ),
    TaskType(
        body=op.ExposureRemove,
        version=1,
        serves="TSK-2: remove exposure and lease on release",
        results=(op.ExposureRemoved,),
        failures=(*_MEND, "leftovers"),
        bounds=_ONCE,
    ),
    TaskType(
        body=op.AddressReport,
        version=1,
        serves="TSK-2: report VM IP and endpoint",
        results=(op.AddressReported,),
        failures=(*_LOOK, "not_wanted"),
        bounds=_ONCE,
    ),
    TaskType(
        body=op.ReadinessPoll,
        version=1,
        serves="TSK-2: poll readiness",
        results=(op.ReadinessPolled,),
        failures=(*_LOOK, "superseded", "not_wanted", "lease_mismatch", "no_lease", "not_reachable"),
        bounds=_WATCH,
    ),
    TaskType(
        body=op.DriftReport,
        version=1,
        serves="TSK-2: emit drift evidence",
        results=(op.DriftReported,),
        failures=_LOOK,
        bounds=_ONCE,
    ),
    TaskType(
        body=op.MachineInspect,
        version=1,
        serves="TSK-2: inspect the VM",
        results=(op.MachineInspected,),
        failures=_LOOK,
        bounds=_ONCE,
    ),
    TaskType(
        body=op.OperationCancel,
        version=1,
        serves="TSK-7: a running task can be cancelled",
        results=(op.OperationCancelled,),
        failures=("broke",),
        bounds=_CANCEL,
    ),
)
"""The catalogue, in the order in which people read it."""

CATALOGUE: Final[Mapping[str, TaskType]] = MappingProxyType({type_.kind: type_ for type_ in TYPES})
"""Every task type by its kind."""
INGRESS: Final = "slice.apply/1+ingress"
"""That orders for slices may have ways in from outside."""
RATE: Final = "slice.apply/1+rate"
"""That orders for slices may limit their traffic."""
ANNOUNCED: Final = (*(type_.announced for type_ in TYPES), INGRESS, RATE)
"""What a node of this release speaks."""


def type_of(kind: str) -> TaskType:
    """Raises `NotInCatalogue`."""
    try:
        return CATALOGUE[kind]
    except KeyError:
        raise NotInCatalogue(kind) from None


def bounds_of(kind: str) -> Bounds:
    """Raises `NotInCatalogue`."""
    return type_of(kind).bounds


def is_order(kind: str) -> bool:
    """Whether it says what a slot shall carry; what is not in the catalogue is taken for an operation."""
    return kind in CATALOGUE and CATALOGUE[kind].bounds.lane == "orders"
