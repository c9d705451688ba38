"""An allocation over the API whose node says what a test has it say."""

from typing import Any
from uuid import uuid4

import httpx

from tests.api.node import allocate, batch
from tests.servers.plane import RunningPlane
from tests.waiting import until


class Running:
    """An active allocation in the only slot of its node."""

    def __init__(self, plane: RunningPlane, node: httpx.Client, **asked: object) -> None:
        self.plane, self._node = plane, node
        made = allocate(plane, **asked).json()
        self.id, self.slot = made["id"], made["slots"][0]
        self._spool, self._sequence = str(uuid4()), 0
        self.carried_out()

    def carried_out(self) -> str:
        """The node did what its slot's newest order says; that order."""
        order = self.newest_order()
        self.comes_up(order)
        return order

    def comes_up(self, order: str | None = None) -> None:
        self.says("slice.ready", order, address=self.slot["private_ip"], port=22, banner="SSH-2.0-x")

    def is_off(self, *, forced: bool = False) -> None:
        self.says("slice.stopped", forced=forced)

    def says(self, kind: str, of: str | None = None, **said: object) -> None:
        """The node reports something of the slice, as come of that order where one is named."""
        self._sequence += 1
        body = {"kind": kind, "slot_id": "n1/0", "allocation_id": self.id, **said}
        report = batch(self._spool, (self._sequence, body))
        report["reports"][0]["order_id"] = of
        answer = self._node.post("/reports", json=report)
        assert answer.is_success, answer.text

    def order(self, kind: str) -> str:
        """The id of the newest order of that kind, once there is one for the wish of now."""
        wanted = "select max(position) from ledger.event where type in ('allocation.placed', 'allocation.stopping')"
        newest = f"select order_id::text from work.task where kind = '{kind}' and position = ({wanted})"
        until(lambda: len(self.plane.rows(newest)) == 1, f"there is an order {kind}")
        [(name,)] = self.plane.rows(newest)
        return str(name)

    def newest_order(self) -> str:
        """Of the slot, once there is one for the newest fact that wanted something of it."""
        wishes = "('allocation.placed', 'allocation.starting', 'ingress.reserved', 'ingress.withdrawn')"
        wanted = f"select max(position) from ledger.event where type in {wishes}"
        newest = f"select order_id::text from work.task where position = ({wanted})"
        until(lambda: len(self.plane.rows(newest)) == 1, "there is an order for the newest wish")
        [(name,)] = self.plane.rows(newest)
        return str(name)

    def slot_state(self) -> str:
        with self.plane.client() as client:
            [slot] = client.get("/slots").json()["items"]
        return str(slot["state"])

    def asked_to(self, verb: str, **headers: str) -> httpx.Response:
        with self.plane.client(**headers) as client:
            return client.post(f"/allocations/{self.id}/{verb}")

    def found(self) -> dict[str, Any]:
        with self.plane.client() as client:
            return dict(client.get(f"/allocations/{self.id}").json())

    def led_to_by(self, *types: str) -> list[str]:
        """The type of what led to each fact of these types, in their order."""
        told = self.plane.rows(
            """select cause.type from ledger.event as fact
                 left join ledger.event as cause on cause.event_id = fact.causation_id
                where fact.stream_id = %(stream)s and fact.type = any(%(types)s) order by fact.position""",
            stream=f"allocation-{self.id}",
            types=[*types],
        )
        return [type_ for (type_,) in told]

    def types(self) -> list[str]:
        told = self.plane.rows(
            f"select type from ledger.event where stream_id = 'allocation-{self.id}' order by version"
        )
        return [type_.removeprefix("allocation.") for (type_,) in told]
