"""Conversion of the body of an order into the agent's own types for a slice and its network."""

from events.values import SlotId, index_of
from node_agent.host.slices import Slice, SliceNetwork, tap_of
from tasks import orders


def slice_of(order: orders.Order, body: orders.ApplySlice, *, ingress_changed: bool = False) -> Slice:
    """Return the desired slice of an order. If `ingress_changed` is true, the order changed the ingress rules, and
    tracked connections of earlier rules may still exist.
    """
    network = network_of(order.slot_id, body.network)
    return Slice(order.allocation_id, network, body.machine, body.ingress, ingress_changed)


def network_of(slot: SlotId, network: orders.SliceNetwork) -> SliceNetwork:
    """Return the network of a slot's slice, with the name of the slot's tap on the host."""
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
