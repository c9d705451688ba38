"""What was otherwise on a host than it was wanted, as the host saw it: a part of facts about hosts and slots."""

from datetime import datetime

from events.facts import Record
from events.values import IngressId


# Without what is null, so that drift recorded before ways in were named stands in rows as a rebuild writes it.
class DriftFound(Record, frozen=True, omit_defaults=True):
    """One thing that was otherwise than it was wanted, and the evidence."""

    kind: str
    """What kind of drift, one of docs/drift.md."""
    wanted: str
    """What should have been."""
    found: str
    """What was."""
    since: datetime
    """When the host noticed it, by the control plane's time as the host knew it."""
    ingress_id: IngressId | None = None
    """The one way in from outside that it is about; absent where it is about more."""


class OpenDrift(DriftFound, frozen=True, kw_only=True):
    """The same, where it could not be made good."""

    blocks: bool
    """Whether nothing is placed there while it lasts, as the release that recorded it has it."""
