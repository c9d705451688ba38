"""Every failpoint: by the work in whose course it lies, and with the programs that do that work.

A name is written here once. The types are for mypy, at each call of `failpoint` and at each `Step`; the table made of
them is for arming, and for the tests that kill each program at each of its failpoints. A work that grows a step adds
its name to the work's type; a new work is a type and a line in `WORKS`.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, Literal, get_args

Process = Literal["api", "dispatcher", "projector", "agent"]
Side = Literal["before", "after"]

Commanding = Literal["handle.before_append", "handle.before_commit", "handle.committed"]
"""A command on its way to facts."""
Granting = Literal["api.session_granted"]
"""A node has a session: its facts, then its Redis user."""
Revoking = Literal["api.node_revoked"]
FollowingSessions = Literal["queue_users.before", "queue_users.told"]
"""Redis users to the sessions of nodes."""
TakingReports = Literal["intake.taken"]
Dispatching = Literal["follow.before_commit", "follow.committed"]
"""Facts to task rows, with the checkpoint."""
Sending = Literal["sweeper.before_send", "relay.sending", "relay.sent", "sweeper.sent"]
"""Task rows to queues."""
Withdrawing = Literal["relay.withdrawing", "relay.withdrawn"]
"""What dead workers hold of tasks that are at their end."""
Restoring = Literal["redis.restored_users", "redis.refilled"]
"""A Redis that lost its memory."""
Projecting = Literal["project.before_commit", "project.committed"]
Rebuilding = Literal["rebuild.before_emptying", "rebuild.emptied", "rebuild.before_exchange"]

Joining = Literal[
    "agent.secrets.before", "agent.secrets.after",
    "agent.enrolled.before", "agent.enrolled.after",
    "agent.described.before", "agent.described.after",
]  # fmt: skip
"""The agent's own end of its enrolment, and what it says of its host."""
Fetching = Literal["queue.fetch.before", "queue.fetched"]
Settling = Literal["queue.handled", "queue.settled"]
PuttingBack = Literal["queue.put_back.before", "queue.put_back.after"]
"""What was fetched and not begun, when an agent ends."""
Fencing = Literal["agent.fence.before", "agent.fence.after"]
"""What a slot should hold, onto disk."""
Concluding = Literal["agent.outcome.kept", "agent.outcome.told"]
Operating = Literal["agent.operation.ended", "agent.operation.told"]
"""What an admin asked of a node, to its end."""
Interrupting = Literal["agent.interrupted.told"]
Reporting = Literal[
    "agent.report.before", "agent.report.after",
    "agent.deliver.before", "agent.deliver.after",
    "agent.head.before", "agent.head.after",
]  # fmt: skip
Compacting = Literal["agent.compact.between", "agent.compact.after"]

StepName = Literal[
    "link.add_tap", "link.set_tap", "link.take", "link.give_back", "link.delete",
    "lease.reserve", "lease.withdraw", "lease.clear",
    "port.add", "port.set_meters", "port.set_flows", "port.delete_flows", "port.delete_meters", "port.delete",
    "translation.set_rules", "translation.map", "translation.unmap",
    "translation.delete_rules", "translation.flush_connections",
    "machine.write_seed", "machine.start", "machine.resume",
    "machine.check_devices", "machine.note_device", "machine.pin",
    "machine.shut_down", "machine.destroy", "machine.end_stray", "machine.reset_device",
    "machine.wipe_disks",
    "gateway.set_bridge", "gateway.remove_foreign_flows", "gateway.set_rules",
    "gateway.set_address", "gateway.set_forwarding", "gateway.serve_dhcp",
    "gateway.remove_foreign_ports",
    "gateway.set_routes", "gateway.delete_neighbours",
]  # fmt: skip
"""Changes of a host: what one `Step` of a plan does, each with a failpoint before and after."""

Failpoint = (
    Commanding | Granting | Revoking | FollowingSessions | TakingReports
    | Dispatching | Sending | Withdrawing | Restoring | Projecting | Rebuilding
    | Joining | Fetching | Settling | PuttingBack
    | Fencing | Concluding | Operating | Interrupting | Reporting | Compacting
)  # fmt: skip
"""Those that the code names one by one."""

STEPS: Final[tuple[StepName, ...]] = get_args(StepName)
SIDES: Final[tuple[Side, ...]] = get_args(Side)


def step_point(step: StepName, side: Side) -> str:
    """The name of a step's failpoint."""
    return f"agent.{step}.{side}"


@dataclass(frozen=True, slots=True)
class Declared:
    """A failpoint: the work it lies in, and the programs that come by there."""

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
    ("joining", Joining, ("agent",)),
    ("fetching", Fetching, ("agent",)),
    ("settling", Settling, ("agent",)),
    ("putting back", PuttingBack, ("agent",)),
    ("fencing", Fencing, ("agent",)),
    ("concluding", Concluding, ("agent",)),
    ("operating", Operating, ("agent",)),
    ("interrupting", Interrupting, ("agent",)),
    ("reporting", Reporting, ("agent",)),
    ("compacting", Compacting, ("agent",)),
)


def _declared() -> Iterator[Declared]:
    for work, names, processes in WORKS:
        yield from (Declared(name, work, processes) for name in get_args(names))
    for step in STEPS:
        yield from (Declared(step_point(step, side), step, ("agent",)) for side in SIDES)


FAILPOINTS: Final = {each.name: each for each in _declared()}
"""All of them, by name."""
