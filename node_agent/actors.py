"""Order -> function, a line each. An order of a kind that has no line here is refused in words, never dropped."""

from collections.abc import Callable
from typing import Final

import dramatiq
from pydantic import ValidationError

from node_agent.gate import Gate
from tasks.orders import Order

_HOURS_2: Final = 2 * 3600 * 1000
"""Milliseconds. Work keeps deadlines of its own, an hour at most; this only ends what ignores them."""


class MalformedOrder(Exception):
    """The payload is no order of its actor's kind."""


def declare_actors(broker: dramatiq.Broker, queue: str, accept: Callable[[Order], None], gate: Gate) -> None:
    def take(kind: str) -> Callable[[str], None]:
        def carry_out(payload: str) -> None:
            gate.pass_through()
            accept(read_order(kind, payload))

        return carry_out

    def actor(kind: str) -> None:
        dramatiq.actor(broker=broker, queue_name=queue, actor_name=kind, time_limit=_HOURS_2)(take(kind))

    actor("slice.apply")
    actor("slice.remove")


def read_order(kind: str, payload: str) -> Order:
    """Raises `MalformedOrder`: a whole order is checked before any of it is carried out."""
    try:
        order = Order.model_validate_json(payload)
    except ValidationError as error:
        wrong = "; ".join(
            f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors(include_input=False)
        )
        raise MalformedOrder(wrong) from None
    if order.body.kind != kind:
        raise MalformedOrder(f"{order.body.kind} came to the actor of {kind}")
    return order
