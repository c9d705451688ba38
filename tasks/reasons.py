"""Codes of all reasons for which a node refuses a task or fails to complete it; the set is closed.

A refusal comes before any effect. A failure comes after the work began. The code is for programs; the reason's message
names the details, such as the refused step.
"""

from typing import Any, Literal, get_args, get_origin

UnreadCode = Literal["malformed", "oversized", "unsupported"]
"""Codes of tasks that cannot be read: the text is not a task; it is longer than its type allows; its type or version is
not supported by this release."""
CopyCode = Literal["forged", "unknown_key", "expired"]
"""Codes with which a node refuses one received copy of a task; another copy of the task may be valid."""
FenceCode = Literal["wrong_node", "wrong_network", "stale_token", "conflicting_content"]
"""Codes with which a node refuses an order: the slot is on another node; the order's network is not that of the node;
the slot has a newer order; the slot has an order with the same token and other content."""
RefusalCode = UnreadCode | CopyCode | FenceCode | Literal["poisoned"]
"""All codes with which a node refuses a task before any effect. `poisoned`: the task was delivered several times, and
the agent died each time."""

HeadCode = Literal["head_not_trusted", "head_inconsistent"]
"""Codes with which a node refuses a head of the ledger: no trusted key of the sealer signed it; it does not belong to
the history of the head that the node holds."""

UnreadyCode = Literal["lease_mismatch", "no_lease", "not_reachable"]
"""Reasons why a slice is not ready."""
SliceFailureCode = UnreadyCode | Literal["step_refused", "host_unreadable", "image_unusable"]
"""Reasons why a slice could not be brought up as ordered."""
InterruptionCode = Literal["machine_not_running"]
"""Reasons why a slice that was ready is no longer ready."""
OperationFailureCode = (
    UnreadyCode
    | Literal["busy", "internal_error", "cancelled", "host_unreadable", "leftovers"]
    | Literal["not_wanted", "step_refused", "superseded", "time_limit"]
)
"""Reasons why an operation failed after it began."""

StreamCode = Literal[
    "slice_not_on_node",
    "machine_not_running",
    "console_in_use",
    "ssh_not_reachable",
    "host_unreadable",
    "internal_error",
]
"""Reasons why a node cannot open a stream. `slice_not_on_node`: the slot has no slice of the allocation."""


def codes(kind: Any) -> tuple[str, ...]:
    """Return the codes that one of the literal types of this module contains."""
    if get_origin(kind) is Literal:
        return get_args(kind)
    return tuple(code for part in get_args(kind) for code in codes(part))
