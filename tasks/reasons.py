"""Why a node did not do as it was asked: every code that it may give, and no other.

A refusal comes before any effect, for an order as for an operation. A failure comes after the work began. What exactly
was refused, by which step, stands in the reason's message; the code says what kind of thing it is, for programs.
"""

from typing import Any, Literal, get_args, get_origin

UnreadCode = Literal["malformed", "oversized", "unsupported"]
"""The text is no task; it is longer than its type allows; its type or version is not spoken here."""
CopyCode = Literal["forged", "unknown_key", "expired"]
"""Said of one copy, and not of the task: another copy may be good."""
FenceCode = Literal["wrong_node", "wrong_network", "stale_token", "conflicting_content"]
"""The slot is not here, or not on this network; it was told otherwise since; the same token wanted something else."""
RefusalCode = UnreadCode | CopyCode | FenceCode | Literal["poisoned"]
"""`poisoned`: given out several times, and the agent died of it each time."""

UnreadyCode = Literal["lease_mismatch", "no_lease", "not_reachable"]
"""Why a slice does not count as ready."""
SliceFailureCode = UnreadyCode | Literal["step_refused", "host_unreadable"]
"""Why a slice could not be made as ordered."""
InterruptionCode = Literal["machine_not_running"]
"""Why a slice that was ready is so no more."""
OperationFailureCode = (
    UnreadyCode
    | Literal["busy", "broke", "cancelled", "host_unreadable", "leftovers"]
    | Literal["not_wanted", "step_refused", "superseded", "time_limit"]
)
"""Why an operation came to nothing after it began."""


def codes(kind: Any) -> tuple[str, ...]:
    """The codes of one of the types above."""
    if get_origin(kind) is Literal:
        return get_args(kind)
    return tuple(code for part in get_args(kind) for code in codes(part))
