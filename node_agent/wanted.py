"""From the words of an order to the words of the host."""

from events.values import SlotId, index_of
from node_agent.slices import Slice, SliceNetwork, tap_of
from tasks import orders


def slice_of(order: orders.Order, body: orders.ApplySlice, *, ways_changed: bool = False) -> Slice:
    network = network_of(order.slot_id, body.network)
    return Slice(order.allocation_id, network, body.machine, body.ingress, ways_changed)


def network_of(slot: SlotId, network: orders.SliceNetwork) -> SliceNetwork:
    index = index_of(slot)
    return SliceNetwork(
        index=index,
        tap=tap_of(index),
        bridge=network.bridge,
        mac=network.mac_address,
        ip=network.private_ip,
        subnet=network.subnet,
        gateway=network.gateway,
        rate_mbit=network.rate_mbit,
    )
