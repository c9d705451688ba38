"""What docs/tasks.md says besides the tasks themselves. The words stand here; the check keeps the rest beside them."""

from typing import Final

HEAD: Final = """# Tasks

Everything that the control plane may ask of a node. This page is made from `tasks/catalogue.py` by `./dev tasks`, and
`./dev check` fails when the two differ, so it is never behind. The catalogue is closed: there is no task that runs a command,
and what is not on this page is refused on both sides.

There are two sorts. An **order** says what a slot shall carry from now on; it brings the whole of that, and the token of the
fact that wanted it. An **operation** is done once, for somebody who asked; one that is about a slot brings the slot's order
along, and is refused where the slot was told otherwise since. Carried out twice, either changes nothing the second time.

A task travels as signed JSON (JWS, Ed25519) together with the last moment at which a node may begin it. It is read whole before
any of it is carried out. A node announces the types and versions that it speaks: no other operation can be asked of it, and it
refuses what it does not speak.
"""

BOUNDS_HEAD: Final = """## Bounds

*Time limit*: how long it may run on the node, its wait for the slot included. *Tried again*: how often, as a new operation,
after a failure that may pass. *Maximum age*: from its sending to the last moment at which it may begin; each sending is
signed anew. *Bytes*: of its JSON, unsigned. *Credit*: how many tasks of its lane a node may have in its queue and in hand.
"""

REFUSALS_HEAD: Final = """## Refusals

Before any effect, a node refuses a task of any type with one of these. An order's refusal is the report `order.refused`, an
operation's `operation.failed`.
"""

FAILURES_HEAD: Final = """## Failures

With these a task ends badly after it began. Those that may pass are tried again by themselves, as often as the type allows.
Two more the control plane gives itself: `no_answer`, the node told no end of it in time, and `wrong_result`, it answered with
the result of another type.
"""

CODES: Final = {
    "malformed": "it is no task, or a field of it is not as it should be; every such field is named",
    "oversized": "it has more bytes than its type allows",
    "unsupported": "its type, or this version of it, is not spoken by the node",
    "forged": "its signature does not fit, or what stands around the signed text says otherwise than the text",
    "unknown_key": "it was signed by a key that the node was not told of",
    "expired": "its last moment is over; another copy is sent",
    "wrong_node": "it is for another node, or for a slot that the node does not have",
    "wrong_network": "the slice would be on another bridge or network than the one that the node guards",
    "stale_token": "the slot was told otherwise since",
    "conflicting_content": "an order with the same token wanted something else",
    "poisoned": "it was given out several times, and the agent died of it each time",
    "step_refused": "the host refused a step; the message names it",
    "host_unreadable": "a part of the host did not answer, and nothing is changed on an incomplete picture",
    "lease_mismatch": "DHCP's evidence is of another address, or of another card",
    "no_lease": "the guest has no lease",
    "not_reachable": "the guest has its address, and does not answer as its readiness wants",
    "busy": "the node carries out as many operations as it may",
    "broke": "the agent made a mistake; its log tells more",
    "cancelled": "it was told to stop",
    "superseded": "a newer order of the slot came while it ran",
    "time_limit": "it was not done in time",
    "not_wanted": "it does not fit what the slot is to carry",
    "leftovers": "what was taken away is still there; the message names it",
}
"""Each code of a refusal or failure to its meaning."""

ENVELOPES_HEAD: Final = """## What stands around every task

`schema_version` is 1. Beside these fields stands `body`, the task itself.
"""

PARTS_HEAD: Final = """## Parts of tasks

Objects that fields hold.
"""

KINDS_HEAD: Final = """## Kinds of values
"""
