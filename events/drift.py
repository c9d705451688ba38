"""Records of drift that a node observed. Facts about nodes and slots contain them."""

from datetime import datetime

from events.facts import Record
from events.values import IngressId


# Nulls are omitted, so that drift recorded before `ingress_id` existed has the same bytes in rows after a rebuild.
class DriftFound(Record, frozen=True, omit_defaults=True):
    """One difference between the desired and the observed state, with its evidence."""

    kind: str
    """Kind of drift, one of docs/drift.md."""
    desired: str
    """Description of the desired state."""
    observed: str
    """Description of the observed state."""
    since: datetime
    """When the node noticed the difference, on the control plane's clock as estimated by the node."""
    ingress_id: IngressId | None = None
    """The ingress rule that the drift is about; absent if it is about more than one rule or none."""


class OpenDrift(DriftFound, frozen=True, kw_only=True):
    """Drift that the node could not repair."""

    blocks: bool
    """Whether no slice is placed on the affected node or slot while the drift lasts, as decided by the release of the
    control plane that recorded the event."""
