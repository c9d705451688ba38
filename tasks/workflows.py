"""Declarations of all failpoints, each with the kind of work it belongs to and the programs that do this work.

Each name is written once, here. mypy checks the types at each call of `failpoint` and at each `Step`; the table of
failpoints built from these types is used to arm failpoints, and by the tests that kill each program at each of its
failpoints. To add a failpoint, add its name to the type of its kind of work; to add a kind of work, add a type and a
line in `WORKS`.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, Literal, get_args

Process = Literal["api", "dispatcher", "projector", "sealer", "agent"]
Side = Literal["before", "after"]

Commanding = Literal["handle.before_append", "handle.before_commit", "handle.committed"]
"""Failpoints of the work of recording the facts of a command."""
Granting = Literal["api.session_granted"]
"""Failpoints of the work of granting a node session: recording its facts, then creating its Redis user."""
Revoking = Literal["api.node_revoked"]
FollowingSessions = Literal["queue_users.before", "queue_users.applied"]
"""Failpoints of the work of applying the sessions of nodes to the nodes' Redis users."""
TakingReports = Literal["intake.taken"]
Dispatching = Literal["follow.before_commit", "follow.committed"]
"""Failpoints of the work of deriving rows of tasks from facts, in one transaction with the checkpoint."""
Sending = Literal["task_sender.before_send", "relay.sending", "relay.sent", "task_sender.sent"]
"""Failpoints of the work of sending the tasks in the task table to the nodes' queues."""
Withdrawing = Literal["relay.withdrawing", "relay.withdrawn"]
"""Failpoints of the work of removing from the queues the ended tasks that dead workers still hold."""
Restoring = Literal["redis.restored_users", "redis.refilled"]
"""Failpoints of the work of restoring a Redis that lost its data."""
Projecting = Literal["project.before_commit", "project.committed"]
Rebuilding = Literal["rebuild.before_emptying", "rebuild.emptied", "rebuild.before_exchange"]
Sealing = Literal["seal.before_commit", "seal.committed"]
"""Failpoints of the work of extending the ledger's Merkle tree and storing a signed head of it."""

Joining = Literal[
    "agent.secrets.before", "agent.secrets.after",
    "agent.enrolled.before", "agent.enrolled.after",
    "agent.description.before", "agent.described.before", "agent.described.after",
]  # fmt: skip
"""Failpoints of the agent's part of an enrolment, and of the first reports of the node's description."""
Fetching = Literal["queue.fetch.before", "queue.fetched"]
Settling = Literal["queue.handled", "queue.settled"]
Requeueing = Literal["queue.requeue.before", "queue.requeue.after"]
"""Failpoints of the work of requeueing orders that an ending agent fetched and did not begin."""
Fencing = Literal["agent.fence.before", "agent.fence.after"]
"""Failpoints of the work of writing the desired state of a slot to the node's disk."""
Concluding = Literal["agent.outcome.kept", "agent.outcome.reported"]
Operating = Literal["agent.operation.ended", "agent.operation.reported"]
"""Failpoints of the work of executing an operation that an admin requested, and reporting its end."""
Interrupting = Literal["agent.interrupted.reported"]
Reporting = Literal[
    "agent.report.before", "agent.report.after",
    "agent.deliver.before", "agent.deliver.after",
    "agent.head.before", "agent.head.after",
]  # fmt: skip
Witnessing = Literal["agent.sealed_head.before", "agent.sealed_head.after"]
"""Failpoints of the work of holding the newest head of the ledger."""
Compacting = Literal["agent.compact.between", "agent.compact.after"]

StepName = Literal[
    "link.add_tap", "link.set_tap", "link.take", "link.give_back", "link.delete",
    "lease.reserve", "lease.withdraw", "lease.clear",
    "port.add", "port.set_meters", "port.set_flows", "port.delete_flows", "port.delete_meters", "port.delete",
    "translation.set_rules", "translation.map", "translation.unmap",
    "translation.delete_rules", "translation.flush_connections",
    "machine.fetch_image", "machine.make_root_disk", "machine.wipe_root_disk",
    "machine.write_seed", "machine.start", "machine.resume",
    "machine.check_devices", "machine.note_device", "machine.pin",
    "machine.activate_partition", "machine.deactivate_partition",
    "machine.shut_down", "machine.destroy", "machine.end_stray", "machine.reset_device",
    "machine.wipe_disks",
    "gateway.set_bridge", "gateway.remove_foreign_flows", "gateway.set_rules",
    "gateway.set_address", "gateway.set_forwarding", "gateway.serve_dhcp",
    "gateway.remove_foreign_ports",
    "gateway.set_routes", "gateway.delete_neighbours",
]  # fmt: skip
"""Names of the steps of plans, each of which is one change of a host and has a failpoint before and after it."""

Failpoint = (
    Commanding | Granting | Revoking | FollowingSessions | TakingReports
    | Dispatching | Sending | Withdrawing | Restoring | Projecting | Rebuilding | Sealing
    | Joining | Fetching | Settling | Requeueing
    | Fencing | Concluding | Operating | Interrupting | Reporting | Witnessing | Compacting
)  # fmt: skip
"""Names of all failpoints except those before and after the steps of a plan."""

STEPS: Final[tuple[StepName, ...]] = get_args(StepName)
SIDES: Final[tuple[Side, ...]] = get_args(Side)


def step_point(step: StepName, side: Side) -> str:
    """Return the name of the failpoint before or after a step, which is one change of a host."""
    return f"agent.{step}.{side}"


@dataclass(frozen=True, slots=True)
class Declared:
    """Declaration of a failpoint: its name, the kind of work it belongs to, and the programs that reach it."""

    name: str
    work: str
    processes: tuple[Process, ...]


WORKS: Final[tuple[tuple[str, Any, tuple[Process, ...]], ...]] = (
    ("commanding", Commanding, ("api", "dispatcher", "projector")),
    ("granting", Granting, ("api",)),
    ("revoking", Revoking, ("api",)),
    ("following sessions", FollowingSessions, ("api", "dispatcher")),
    ("taking reports", TakingReports, ("api",)),
    ("dispatching", Dispatching, ("dispatcher",)),
    ("sending", Sending, ("dispatcher",)),
    ("withdrawing", Withdrawing, ("dispatcher",)),
    ("restoring", Restoring, ("dispatcher",)),
    ("projecting", Projecting, ("projector",)),
    ("rebuilding", Rebuilding, ("projector",)),
    ("sealing", Sealing, ("sealer",)),
    ("joining", Joining, ("agent",)),
    ("fetching", Fetching, ("agent",)),
    ("settling", Settling, ("agent",)),
    ("putting back", Requeueing, ("agent",)),
    ("fencing", Fencing, ("agent",)),
    ("concluding", Concluding, ("agent",)),
    ("operating", Operating, ("agent",)),
    ("interrupting", Interrupting, ("agent",)),
    ("reporting", Reporting, ("agent",)),
    ("witnessing", Witnessing, ("agent",)),
    ("compacting", Compacting, ("agent",)),
)


def _declared() -> Iterator[Declared]:
    for work, names, processes in WORKS:
        yield from (Declared(name, work, processes) for name in get_args(names))
    for step in STEPS:
        yield from (Declared(step_point(step, side), step, ("agent",)) for side in SIDES)


FAILPOINTS: Final = {each.name: each for each in _declared()}
"""The declarations of all failpoints, by name."""
