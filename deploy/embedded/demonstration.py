"""The demonstration of `./dev up`: two nodes join, a slice is created and used, and `--once` releases it completely."""

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
VIA_TEXT: Final = {"node": "from its node", "public": "from outside"}
LABEL: Final = {"made-by": "dev-up"}
"""Label of the slice that `up` creates and keeps."""
ONCE_LABEL: Final = {"made-by": "dev-up-once"}
"""Label of a slice that `up --once` creates. A slice with it at a start is left over from an interrupted run."""
ENDED: Final = ("failed", "released")
PORTS: Final = {"first_port": 20000, "last_port": 29999}
"""Port range of each node's address for ingress rules."""
_SSH_PORT: Final = 22
END_STATES: Final = ("active", "failed", "released")


class DemonstrationFailed(Exception):
    """A step of the demonstration failed; the message states the step and the reason."""


@dataclass(frozen=True, slots=True)
class Demonstration:
    """The steps of `./dev up`, in order. `supervise` restarts exited processes during each wait.

    Events recorded before `began` are not shown, because the earlier run has shown them.
    """

    layout: Layout
    api: Api
    nodes: Nodes
    screen: Screen
    supervise: Callable[[], None]
    began: datetime = field(default_factory=lambda: datetime.now(UTC))

    def last_seen(self) -> dict[str, str | None]:
        """Return the time of each node's last contact. A later time proves that its agent contacted the API again."""
        return {node["id"]: node["seen_at"] for node in self.api.items("/nodes")}

    def admit_nodes(self) -> None:
        """Create an enrolment token for each node that has no key in the control plane, or no token file.

        A registered node has no key if its token expired unused, or if it enrolled with a release without node keys.
        """
        known = {node["id"]: node["key_thumbprint"] for node in self.api.items("/nodes")}
        for name in NODES:
            if name not in known:
                write_token(self.layout, name, self.api.post("/nodes", {"id": name})["enrolment_token"])
            elif known[name] is None or not token_file(self.layout, name).exists():
                opened = self.api.post(f"/nodes/{name}/enrolment")
                write_token(self.layout, name, opened["enrolment_token"])

    def await_nodes(self, before: dict[str, str | None]) -> None:
        """Wait until the nodes have enrolled, described themselves and compared their slots with the desired state.

        Then approve the discovered slots. Configure ports of a node's own address as public, for ingress rules, unless
        an admin has configured public addresses of the node. `before` is the return value of `last_seen`.
        """
        with self.screen.step("nodes enrol and describe themselves"):
            self._until(lambda: self._nodes_are_ready(before), JOIN_SECONDS, self._what_nodes_lack)
        for slot in self.api.items("/slots"):
            if slot["state"] == "discovered":
                approved = self.api.post(f"/nodes/{slot['node_id']}/slots/{slot['index']}/approve")
                self.screen.detail(
                    f"slot {approved['id']}: {', '.join(approved['skus'])}, "
                    f"MAC {approved['mac_address']}, address {approved['private_ip']}"
                )
        for name in NODES:
            if not self.api.get(f"/nodes/{name}")["public_addresses"]:
                shared = {"address": self.nodes.public_address(name), "use": "ports", **PORTS}
                self.api.put(f"/nodes/{name}/public-addresses", {"addresses": [shared]})

    def _nodes_are_ready(self, before: dict[str, str | None]) -> bool:
        ready = [
            node
            for node in self.api.items("/nodes")
            if node["id"] in NODES
            and node["state"] == "enrolled"
            and node["hostname"]
            and not node["missing"]
            and node["seen_at"] != before.get(node["id"])
        ]
        return len(ready) == len(NODES) and len(self.api.items("/slots")) > 0

    def _what_nodes_lack(self) -> str:
        return "; ".join(
            f"node {node['id']} is {node['state']} and lacks {', '.join(node['missing']) or 'nothing'}"
            for node in self.api.items("/nodes")
            if node["id"] in NODES
        )

    def release_leftovers(self) -> None:
        """Release the slices of interrupted runs of `up --once`, which hold their slots until their leases expire."""
        for each in self._unfinished(ONCE_LABEL):
            self.screen.show(f"slice {each['id']} is left over from an interrupted `up --once`")
            if each["state"] != "releasing":
                self.api.delete(f"/allocations/{each['id']}")
            self._await_release(each["id"])

    def resume(self) -> list[dict[str, Any]]:
        """Wait until each slice of an earlier run is active again or has failed. Return the active allocations."""
        for each in self._unfinished(LABEL):
            if each["state"] not in ("releasing", "stopped"):
                self.screen.show(f"slice {each['id']} is from an earlier run")
                self._follow(each["id"])
        return [each for each in self._unfinished(LABEL) if each["state"] == "active"]

    def others(self) -> list[dict[str, Any]]:
        """Return unfinished allocations that `up --once` did not create."""
        return [each for each in self._unfinished() if each["labels"] != ONCE_LABEL]

    def _unfinished(self, label: Mapping[str, str] | None = None) -> list[dict[str, Any]]:
        return [
            each
            for each in self.api.items("/allocations")
            if each["state"] not in ENDED and label in (None, each["labels"])
        ]

    def create(self, label: Mapping[str, str] = LABEL) -> dict[str, Any]:
        """Request one slice with SSH from outside and show its progress.

        Raises `DemonstrationFailed` unless the allocation becomes active.
        """
        request = {
            "sku": "lab.small",
            "network_mode": "public-nat",
            "ssh_authorized_keys": [ensure_key_pair(self.layout.ssh_key)],
            "ingress": [{"protocol": "tcp", "port": 22}],
            "labels": dict(label),
        }
        try:
            created = self.api.post("/allocations", request)
        except ApiRefused as refused:
            if "no_capacity" not in refused.codes:
                raise
            raise DemonstrationFailed(self._no_free_slot()) from refused
        allocation = self._follow(created["id"])
        if allocation["state"] != "active":
            reason = allocation["reason"] or {"message": "no reason was recorded"}
            raise DemonstrationFailed(
                f"allocation {created['id']} is {allocation['state']} and not active: {reason['message']}"
            )
        return allocation

    def _follow(self, allocation: str) -> dict[str, Any]:
        """Print the new events of an allocation until it is active, failed or released."""
        shown = 0
        began = time.monotonic()
        while True:
            found: dict[str, Any] = self.api.get(f"/allocations/{allocation}")
            timeline = self.api.items(f"/allocations/{allocation}/events")
            new = [each for each in timeline if datetime.fromisoformat(each["recorded_at"]) >= self.began]
            for event in new[shown:]:
                self.screen.event(event, new[0])
            shown = len(new)
            if found["state"] in END_STATES and timeline and _includes_end(timeline, found["state"]):
                return found
            if time.monotonic() - began > READY_SECONDS:
                raise DemonstrationFailed(
                    f"allocation {allocation} is still {found['state']} after {READY_SECONDS:.0f} s"
                )
            self._pause()

    def use(self, allocation: dict[str, Any]) -> None:
        """Log in to each guest, through its node and from outside. Raises `GuestUnusable`."""
        for endpoint in ssh_endpoints(allocation):
            where = f"{endpoint['address']}:{endpoint['port']}"
            with self.screen.step(f"log in to the guest at {where} {VIA_TEXT[endpoint['via']]}"):
                lines = self.nodes.prove_login(endpoint, allocation["id"])
            for line in lines:
                self.screen.detail(line)

    def release(self, allocation: str) -> None:
        """Release the allocation and wait for the proof that nothing of it remains."""
        self.api.delete(f"/allocations/{allocation}")
        self._await_release(allocation)

    def _await_release(self, allocation: str) -> None:
        with self.screen.step(f"release {allocation}"):
            self._until(
                lambda: self._is_released(allocation), RELEASE_SECONDS, lambda: self._held_slots(allocation)
            )

    def _no_free_slot(self) -> str:
        """Return the error text for a request without a free slot: the allocations that hold slots, and advice."""
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

    def _held_slots(self, allocation: str) -> str:
        held = [slot for slot in self.api.items("/slots") if slot["allocation_id"] == allocation]
        return "; ".join(
            f"slot {slot['id']} is {slot['state']}: {(slot['reason'] or {}).get('message')}" for slot in held
        )

    def _until(self, done: Callable[[], bool], seconds: float, reason: Callable[[], str]) -> None:
        deadline = time.monotonic() + seconds
        while not done():
            if time.monotonic() > deadline:
                raise DemonstrationFailed(f"timed out after {seconds:.0f} s: {reason()}")
            self._pause()

    def _pause(self) -> None:
        self.supervise()
        time.sleep(0.1)


def ssh_endpoints(allocation: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the endpoints of an allocation at which its guests accept a login: the private ones for SSH, and the
    public ones of ingress rules to the SSH port. Users may have added rules to other ports.
    """
    public = {
        (each["public_address"], each["public_port"])
        for each in allocation["ingress"]
        if (each["protocol"], each["port"]) == ("tcp", _SSH_PORT)
    }
    return [
        each
        for each in allocation["endpoints"]
        if each["kind"] == "ssh" or (each["kind"] == "tcp" and (each["address"], each["port"]) in public)
    ]


def _includes_end(events: list[dict[str, Any]], state: str) -> bool:
    """Return whether the events of an allocation include the event that led to `state`.

    The projector adds an event to the allocation's timeline slightly later than the state changes.
    """
    ends = {
        "active": "allocation.lease_granted",
        "failed": "allocation.failed",
        "released": "allocation.released",
    }
    types = [event["type"] for event in events]
    return ends[state] in types
