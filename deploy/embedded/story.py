"""What `./dev up` shows: two nodes join, a slice is made and used, and (with `--once`) given back without a trace."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

from deploy.embedded.client import Api, ApiRefused
from deploy.embedded.layout import Layout
from deploy.embedded.node_files import NODES, token_file, write_token
from deploy.embedded.nodes import Nodes
from deploy.embedded.screen import Screen
from deploy.embedded.ssh_key import ensure_key_pair

JOIN_SECONDS: Final = 60.0
READY_SECONDS: Final = 150.0
RELEASE_SECONDS: Final = 60.0
FROM: Final = {"node": "from its node", "public": "from outside"}
LABEL: Final = {"made-by": "dev-up"}
"""Label of the slice that `up` makes and keeps."""
ONCE_LABEL: Final = {"made-by": "dev-up-once"}
"""Label of a slice that `up --once` makes. One that exists at a start is left over from an interrupted run."""
ENDED: Final = ("failed", "released")
PORTS: Final = {"first_port": 20000, "last_port": 29999}
"""Of each node's address, for ways in to slices."""
END_STATES: Final = ("active", "failed", "released")


class StoryFailed(Exception):
    """The story did not go as promised; the message says at which point and why."""


@dataclass(frozen=True, slots=True)
class Story:
    """Steps in order; `tend` keeps the machinery alive while one waits. Facts from before `began` were shown by the run
    that saw them.
    """

    layout: Layout
    api: Api
    nodes: Nodes
    screen: Screen
    tend: Callable[[], None]
    began: datetime = field(default_factory=lambda: datetime.now(UTC))

    def last_seen(self) -> dict[str, str | None]:
        """When each node was last heard of: read before the agents start, to tell their word from an older one's."""
        return {node["id"]: node["seen_at"] for node in self.api.items("/nodes")}

    def admit_nodes(self) -> None:
        """Open an enrolment for each node whose key the control plane does not have, or whose token got lost on the
        way.

        One that was met and has no key is one whose token ran out, or that enrolled before nodes had keys.
        """
        known = {node["id"]: node["key_thumbprint"] for node in self.api.items("/nodes")}
        for name in NODES:
            if name not in known:
                write_token(self.layout, name, self.api.post("/nodes", {"id": name})["enrolment_token"])
            elif known[name] is None or not token_file(self.layout, name).exists():
                opened = self.api.post(f"/nodes/{name}/enrolment")
                write_token(self.layout, name, opened["enrolment_token"])

    def await_nodes(self, before: dict[str, str | None]) -> None:
        """Wait until the nodes enrolled, described themselves and compared their slots with what is wanted; then
        approve the slots they found, and give out ports of a node's own address where it has no public one yet: what
        an admin said of it stays. `before` is what `last_seen` said.
        """
        with self.screen.step("nodes enrol and describe themselves"):
            self._until(lambda: self._nodes_are_fit(before), JOIN_SECONDS, self._what_nodes_lack)
        for slot in self.api.items("/slots"):
            if slot["state"] == "discovered":
                approved = self.api.post(f"/nodes/{slot['node_id']}/slots/{slot['index']}/approve")
                self.screen.note(
                    f"slot {approved['id']}: {approved['sku']}, "
                    f"MAC {approved['mac_address']}, address {approved['private_ip']}"
                )
        for name in NODES:
            if not self.api.get(f"/nodes/{name}")["public_addresses"]:
                shared = {"address": self.nodes.public_address(name), "use": "ports", **PORTS}
                self.api.put(f"/nodes/{name}/public-addresses", {"addresses": [shared]})

    def _nodes_are_fit(self, before: dict[str, str | None]) -> bool:
        fit = [
            node
            for node in self.api.items("/nodes")
            if node["state"] == "enrolled"
            and node["hostname"]
            and not node["missing"]
            and node["seen_at"] != before.get(node["id"])
        ]
        return len(fit) == len(NODES) and len(self.api.items("/slots")) > 0

    def _what_nodes_lack(self) -> str:
        return "; ".join(
            f"{node['id']} is {node['state']}, lacks {', '.join(node['missing']) or 'nothing'}"
            for node in self.api.items("/nodes")
        )

    def release_leftovers(self) -> None:
        """Release the slices of interrupted runs of `up --once`, which hold their slots until their leases end."""
        for each in self._living(ONCE_LABEL):
            self.screen.say(f"slice {each['id']} is left over from an interrupted --once")
            if each["state"] != "releasing":
                self.api.delete(f"/allocations/{each['id']}")
            self._await_release(each["id"])

    def resume(self) -> list[dict[str, Any]]:
        """After a restart: wait until what was active is active again, or has failed with a reason."""
        for each in self._living(LABEL):
            if each["state"] not in ("releasing", "stopped"):
                self.screen.say(f"slice {each['id']} is from an earlier run")
                self._follow(each["id"])
        return [each for each in self._living(LABEL) if each["state"] == "active"]

    def others(self) -> list[dict[str, Any]]:
        """Allocations that have not ended and that `up --once` did not make."""
        return [each for each in self._living() if each["labels"] != ONCE_LABEL]

    def _living(self, label: Mapping[str, str] | None = None) -> list[dict[str, Any]]:
        return [
            each
            for each in self.api.items("/allocations")
            if each["state"] not in ENDED and label in (None, each["labels"])
        ]

    def create(self, label: Mapping[str, str] = LABEL) -> dict[str, Any]:
        """Request one slice with SSH from outside and show its progress. Raises `StoryFailed` unless it becomes
        active.
        """
        asked = {
            "sku": "lab.small",
            "network_mode": "public-nat",
            "ssh_authorized_keys": [ensure_key_pair(self.layout.ssh_key)],
            "ingress": [{"protocol": "tcp", "port": 22}],
            "labels": dict(label),
        }
        try:
            made = self.api.post("/allocations", asked)
        except ApiRefused as refused:
            if "no_capacity" not in refused.codes:
                raise
            raise StoryFailed(self._why_full()) from refused
        allocation = self._follow(made["id"])
        if allocation["state"] != "active":
            reason = allocation["reason"] or {"message": "no reason was given"}
            raise StoryFailed(f"allocation {made['id']} is {allocation['state']}: {reason['message']}")
        return allocation

    def _follow(self, allocation: str) -> dict[str, Any]:
        """Show what is new of it, with its time, until the allocation rests."""
        shown = 0
        began = time.monotonic()
        while True:
            found: dict[str, Any] = self.api.get(f"/allocations/{allocation}")
            told = self.api.items(f"/allocations/{allocation}/events")
            new = [each for each in told if datetime.fromisoformat(each["recorded_at"]) >= self.began]
            for event in new[shown:]:
                self.screen.event(event, new[0])
            shown = len(new)
            if found["state"] in END_STATES and told and _tells(told, found["state"]):
                return found
            if time.monotonic() - began > READY_SECONDS:
                raise StoryFailed(f"allocation {allocation} is still {found['state']}")
            self._pause()

    def use(self, allocation: dict[str, Any]) -> None:
        """Log in to each guest, through its node and from outside. Raises `GuestUnusable`."""
        for endpoint in allocation["endpoints"]:
            where = f"{endpoint['address']}:{endpoint['port']}"
            with self.screen.step(f"log in to the guest at {where} {FROM[endpoint['via']]}"):
                said = self.nodes.prove_login(endpoint, allocation["id"])
            for line in said:
                self.screen.note(line)

    def release(self, allocation: str) -> None:
        """Release the allocation and wait for the proof that nothing of it is left."""
        self.api.delete(f"/allocations/{allocation}")
        self._await_release(allocation)

    def _await_release(self, allocation: str) -> None:
        with self.screen.step(f"release {allocation}"):
            self._until(lambda: self._is_released(allocation), RELEASE_SECONDS, lambda: self._why(allocation))

    def _why_full(self) -> str:
        """Why there was no slot for a slice: the allocations that hold slots, and the slots that are blocked."""
        slots = self.api.items("/slots")
        holders = sorted({slot["allocation_id"] for slot in slots if slot["allocation_id"] is not None})
        held = f"held by {', '.join(holders)}" if holders else "not available"
        return (
            f"no slot is free for a slice: {len(slots)} slots, {held}. "
            f"Release one with `sliceplane allocations release ID`, see `sliceplane slots list`, "
            f"or empty the state folder with `./dev reset --state {self.layout.state}`"
        )

    def _is_released(self, allocation: str) -> bool:
        return str(self.api.get(f"/allocations/{allocation}")["state"]) == "released"

    def _why(self, allocation: str) -> str:
        held = [slot for slot in self.api.items("/slots") if slot["allocation_id"] == allocation]
        return "; ".join(
            f"slot {slot['id']} is {slot['state']}: {(slot['reason'] or {}).get('message')}" for slot in held
        )

    def _until(self, done: Callable[[], bool], seconds: float, why: Callable[[], str]) -> None:
        deadline = time.monotonic() + seconds
        while not done():
            if time.monotonic() > deadline:
                raise StoryFailed(f"gave up after {seconds:.0f} s: {why()}")
            self._pause()

    def _pause(self) -> None:
        self.tend()
        time.sleep(0.1)


def _tells(events: list[dict[str, Any]], state: str) -> bool:
    """Whether the story, which is projected a moment later, has come to the state that was seen."""
    ends = {
        "active": "allocation.lease_granted",
        "failed": "allocation.failed",
        "released": "allocation.released",
    }
    types = [event["type"] for event in events]
    return ends[state] in types
