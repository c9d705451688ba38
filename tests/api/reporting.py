"""Active allocation on a node that a test controls with API requests, without an agent."""

from typing import Any
from uuid import uuid4

import httpx

from tests.api.node import allocate, batch
from tests.servers.plane import RunningPlane
from tests.waiting import until


class RunningAllocation:
    """An active allocation in one slot of a node."""

    def __init__(self, plane: RunningPlane, node: httpx.Client, **fields: object) -> None:
        self.plane, self._node = plane, node
        made = allocate(plane, **fields).json()
        self.id, self.slot = made["id"], made["slots"][0]
        self._spool, self._sequence = str(uuid4()), 0
        self.complete_order()

    def complete_order(self) -> str:
        """Report the slice ready as the result of the newest order of its slot, and return the id of the order."""
        order_id = self.newest_order()
        self.report_ready(order_id)
        return order_id

    def report_ready(self, order_id: str | None = None) -> None:
        self.report("slice.ready", order_id, address=self.slot["private_ip"], port=22, banner="SSH-2.0-x")

    def report_stopped(self, *, forced: bool = False) -> None:
        self.report("slice.stopped", forced=forced)

    def report(self, kind: str, order_id: str | None = None, **fields: object) -> None:
        """Send a report about the slice, as the result of the order `order_id` if it is given."""
        self._sequence += 1
        body = {"kind": kind, "slot_id": self.slot["slot_id"], "allocation_id": self.id, **fields}
        report = batch(self._spool, (self._sequence, body))
        report["reports"][0]["order_id"] = order_id
        answer = self._node.post("/reports", json=report)
        assert answer.is_success, answer.text

    def newest_order_of_kind(self, kind: str) -> str:
        """Wait for the order of this kind that follows from the newest placement or stop, and return the order's id."""
        position = "select max(position) from ledger.event where type in ('allocation.placed', 'allocation.stopping')"
        newest = f"select order_id::text from work.task where kind = '{kind}' and position = ({position})"
        until(lambda: len(self.plane.rows(newest)) == 1, f"there is an order {kind}")
        [(name,)] = self.plane.rows(newest)
        return str(name)

    def newest_order(self) -> str:
        """Wait for the order of the newest change of the slot's desired state, and return the order's id."""
        types = "('allocation.placed', 'allocation.starting', 'ingress.reserved', 'ingress.withdrawn')"
        position = f"select max(position) from ledger.event where type in {types}"
        newest = f"select order_id::text from work.task where position = ({position})"
        until(lambda: len(self.plane.rows(newest)) == 1, "there is an order for the newest desired state")
        [(name,)] = self.plane.rows(newest)
        return str(name)

    def slot_state(self) -> str:
        with self.plane.client() as client:
            [slot] = client.get("/slots").json()["items"]
        return str(slot["state"])

    def request(self, verb: str, **headers: str) -> httpx.Response:
        with self.plane.client(**headers) as client:
            return client.post(f"/allocations/{self.id}/{verb}")

    def view(self) -> dict[str, Any]:
        with self.plane.client() as client:
            return dict(client.get(f"/allocations/{self.id}").json())

    def causes_of(self, *types: str) -> list[str]:
        """Return the type of the event that caused each event of these types, in ledger order."""
        rows = self.plane.rows(
            """select cause.type from ledger.event as fact
                 left join ledger.event as cause on cause.event_id = fact.causation_id
                where fact.stream_id = %(stream)s and fact.type = any(%(types)s) order by fact.position""",
            stream=f"allocation-{self.id}",
            types=[*types],
        )
        return [type_ for (type_,) in rows]

    def event_types(self) -> list[str]:
        rows = self.plane.rows(
            f"select type from ledger.event where stream_id = 'allocation-{self.id}' order by version"
        )
        return [type_.removeprefix("allocation.") for (type_,) in rows]
