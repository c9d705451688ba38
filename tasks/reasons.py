"""Codes of all reasons for which a node refuses a task or fails to complete it; the set is closed.

A refusal comes before any effect. A failure comes after the work began. The code is for programs; the reason's message
names the details, such as the refused step.
"""

from typing import Any, Literal, get_args, get_origin

UnreadCode = Literal["malformed", "oversized", "unsupported"]
"""The text is not a task; it exceeds the length of its type; its type or version is not supported here."""
CopyCode = Literal["forged", "unknown_key", "expired"]
"""Refusals of one copy of a task: another copy may be valid."""
FenceCode = Literal["wrong_node", "wrong_network", "stale_token", "conflicting_content"]
"""The slot or its network is not on this node; a newer order exists; the same token came with other content."""
RefusalCode = UnreadCode | CopyCode | FenceCode | Literal["poisoned"]
"""`poisoned`: delivered several times, and the agent died each time."""

UnreadyCode = Literal["lease_mismatch", "no_lease", "not_reachable"]
"""Reasons why a slice is not ready."""
SliceFailureCode = UnreadyCode | Literal["step_refused", "host_unreadable"]
"""Reasons why a slice could not be brought up as ordered."""
InterruptionCode = Literal["machine_not_running"]
"""Reasons why a slice that was ready no longer is."""
OperationFailureCode = (
    UnreadyCode
    | Literal["busy", "internal_error", "cancelled", "host_unreadable", "leftovers"]
    | Literal["not_wanted", "step_refused", "superseded", "time_limit"]
)
"""Reasons why an operation failed after it began."""


def codes(kind: Any) -> tuple[str, ...]:
    """Return the codes that a literal type of this module lists."""
    if get_origin(kind) is Literal:
        return get_args(kind)
    return tuple(code for part in get_args(kind) for code in codes(part))
