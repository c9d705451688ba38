"""Response types of `/v1/audit`."""

from datetime import datetime

from control_plane.client.answers import Answer


class Head(Answer, frozen=True):
    """A signed head of the ledger: the number of sealed positions, and the hash of the tree over them."""

    number: int
    size: int
    root: str
    epoch: int
    sealed_at: datetime
    signed: str
    state: dict[str, str]
    previous: str | None = None


class Sink(Answer, frozen=True):
    """A place to which the sealer sends the signed heads: the newest head that it stored, or why it stores none."""

    name: str
    number: int | None = None
    stored_at: datetime | None = None
    failing_since: datetime | None = None
    error: str | None = None


class Sinks(Answer, frozen=True):
    """All sinks of the sealer, and the number of the newest head."""

    newest: int | None = None
    sinks: tuple[Sink, ...] = ()


class InclusionProof(Answer, frozen=True):
    position: int
    size: int
    leaf: str
    hashes: tuple[str, ...] = ()
    head: Head | None = None


class ConsistencyProof(Answer, frozen=True):
    first: int
    second: int
    hashes: tuple[str, ...] = ()
