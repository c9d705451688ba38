"""Fixed text of docs/tasks.md; the rest of the page is generated from the code. A check compares page and code."""

from typing import Final

HEAD: Final = """# Tasks

All tasks that the control plane can send to a node. This page is generated from `tasks/catalogue.py` by `./dev tasks`, and
`./dev check` fails if the two differ. The catalogue is closed: no task runs a command, and both sides refuse any other task.

There are two sorts. An **order** sets the desired state of a slot; it contains the complete state, and the fence token of the fact
that last changed it. An **operation** is executed once, at the request of an admin; an operation on a slot contains the slot's
current order, and is refused if the slot has a newer one. A second execution of either changes nothing.

A task is sent as signed JSON (JWS, Ed25519) together with the time until which a node may begin it. The node parses it completely
before it executes any part. A node announces the types and versions that it supports: no other operation can be requested of it, and
it refuses unsupported tasks.
"""

BOUNDS_HEAD: Final = """## Bounds

*Time limit*: maximum run time on the node, including the wait for its slot. *Retries*: number of further attempts, each as a new
operation, after a retryable failure. *Maximum age*: maximum time from sending to the start; the task is signed again each time it is
sent. *Bytes*: maximum size of its JSON, unsigned. *Credit*: maximum number of tasks of its lane that a node may have queued and in flight.
"""

REFUSALS_HEAD: Final = """## Refusals

A node refuses a task of any type with one of these codes, before any effect. The refusal of an order is the report `order.refused`,
that of an operation `operation.failed`.
"""

FAILURES_HEAD: Final = """## Failures

A task that fails after it began has one of these codes. Retryable failures are retried automatically, as often as the type allows.
The control plane adds two codes itself: `no_answer`, if the node reported no end in time, and `wrong_result`, if it reported
the result of another type.
"""

CODES: Final = {
    "malformed": "the message is not a task, or some of its fields are invalid; the report names every invalid field",
    "oversized": "the task has more bytes than its type allows",
    "unsupported": "the node does not support the type of the task, or this version of the type",
    "forged": "the signature of the task is invalid, or the unsigned part of the message contradicts the signed text",
    "unknown_key": "the task was signed with a key that the node does not trust",
    "expired": "the task was received after its expiry; the control plane sends another copy",
    "wrong_node": "the task is for another node, or for a slot that the node does not have",
    "wrong_network": "the task names a bridge or network for the slice that differs from the node's own",
    "stale_token": "the slot has a newer order",
    "conflicting_content": "the node received an order with the same fence token and different content before",
    "poisoned": "the task was delivered several times, and the agent died each time",
    "step_refused": "the host refused a step of the task; the message names the step",
    "image_unusable": "the image store does not have the disk image, or the image differs from its entry in the catalogue",
    "host_unreadable": "a part of the host did not respond; the agent changes nothing based on an incomplete snapshot",
    "lease_mismatch": "the DHCP lease is of another address, or of another network card",
    "no_lease": "the guest has no DHCP lease",
    "not_reachable": "the guest has its address, but does not pass its readiness check",
    "busy": "the node already executes the maximum number of operations",
    "internal_error": "the agent failed with an internal error; its log has the details",
    "cancelled": "the operation was cancelled",
    "superseded": "a newer order for the slot arrived while the task ran",
    "time_limit": "the task exceeded its time limit",
    "not_wanted": "the operation contradicts the desired state of the slot",
    "leftovers": "objects that should have been removed still exist; the message names them",
}
"""Meaning of each code of a refusal or failure."""

ENVELOPES_HEAD: Final = """## The envelope of every task

`schema_version` is 1. In addition to these fields, `body` contains the task itself.
"""

PARTS_HEAD: Final = """## Parts of tasks

Objects in fields of tasks.
"""

KINDS_HEAD: Final = """## Kinds of values
"""
