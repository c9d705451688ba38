"""Response types of `/v1/projections` and `/v1/verifications`."""

from datetime import datetime

from control_plane.client.answers import Action, Answer


class Stop(Answer, frozen=True):
    """The event at which a read model stopped, and the error."""

    position: int
    error: str
    since: datetime | None = None


class Rebuild(Answer, frozen=True):
    requested_at: datetime
    requested_by: str
    position: int
    stopped: Stop | None = None
    waits_for: str | None = None


class Projection(Answer, frozen=True):
    name: str
    state: str
    last_position: int
    tables: tuple[str, ...] = ()
    inline: bool = False
    position: int | None = None
    stopped: Stop | None = None
    skipped: tuple[int, ...] = ()
    rebuild: Rebuild | None = None
    allowed_actions: dict[str, Action] | None = None


class Difference(Answer, frozen=True):
    """The first row of a table that differs from the replayed ledger. `live` or `replayed` is None if that side does
    not have the row. `kind` is `ledger` for tables that are written only when events are appended, and `read_model`
    for all others.
    """

    table: str
    key: dict[str, object]
    columns: tuple[str, ...] = ()
    live: dict[str, object] | None = None
    replayed: dict[str, object] | None = None
    kind: str | None = None


class Advice(Answer, frozen=True):
    code: str
    message: str


class StoppedReplay(Answer, frozen=True):
    projection: str
    position: int
    error: str


class Verification(Answer, frozen=True):
    id: str
    state: str
    position: int | None = None
    upto: int | None = None
    differences: tuple[Difference, ...] = ()
    advice: Advice | None = None
    stopped: StoppedReplay | None = None
