"""Commands about slots."""

from control_plane.decisions.refusals import Objection, UnknownName
from control_plane.decisions.slots import approve
from control_plane.handle import Command, Decision, Transaction
from control_plane.origin import Origin
from events.append import Change
from events.values import SlotId, node_of, stream_of_slot
from read_models import nodes, slots


def approve_slot(slot: SlotId, origin: Origin) -> Command:
    """Let a discovered slot be used: its MAC and IP are reserved for good (ALC-2 to ALC-4)."""

    async def command(transaction: Transaction) -> Decision:
        node = await nodes.find(transaction.conn, node_of(slot))
        row = (await slots.locked(transaction.conn, [slot])).get(slot)
        if node is None or row is None:
            raise UnknownName(Objection("unknown_slot", f"no slot {slot} was discovered"))
        fact = approve(slot, row.state, row.hardware, node.subnet, node.l2_domain)
        return Decision((Change(stream_of_slot(slot), row.version, (fact,)),), origin.at(transaction.now))

    return command
