"""Programs of `./dev up` without its demonstration slice: API and Redis over TLS, and an agent with a
simulated host.
"""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from deploy.embedded import redis as embedded_redis
from deploy.embedded.certificates import Certificates
from deploy.embedded.children import Child, installed_program
from deploy.embedded.client import Api
from deploy.embedded.layout import Layout
from deploy.embedded.node_files import host_file, write_configuration, write_token
from deploy.embedded.stack import Stack
from tests.waiting import until

KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIHcl9zYpCQlBTb2vG1mW0K7f2LJkYH4wqQ2s5oE3c1aV test"
NODE = "lab-a"


@dataclass
class Agent:
    """Agent process of a node. `logged` reads its log from the last call of `mark` on."""

    child: Child
    _from: int = 0

    def mark(self) -> None:
        self._from = len(self.child.log.read_text())

    def logged(self, event: str) -> list[dict[str, Any]]:
        lines = self.child.log.read_text()[self._from :].splitlines()
        entries = [json.loads(line) for line in lines if line.startswith("{")]
        return [each for each in entries if each["event"] == event]

    def await_log(self, event: str, words: str = "", seconds: float = 30.0) -> None:
        def has() -> bool:
            return any(words in str(each.get("reason")) for each in self.logged(event))

        until(
            has if words else lambda: bool(self.logged(event)),
            f"the agent logs {event} {words}",
            seconds,
        )


@dataclass
class Site:
    """Control plane over TLS, and the lines that it printed. `expired` is an expired certificate of the same CA."""

    layout: Layout
    stack: Stack
    output: list[str]
    expired: Path
    api: Api = field(init=False)

    def __post_init__(self) -> None:
        self.api = Api(self.stack.api_url, self.stack.ensure_key(), self.stack.trusted)

    def agent(self, name: str, **settings: object) -> Agent:
        """Register a node and start its agent. `settings` override the agent settings that `./dev up` writes."""
        write_token(self.layout, name, self.api.post("/nodes", {"id": name})["enrolment_token"])
        folder = self.layout.node(name)
        host = {
            "simulated": {
                "boot_seconds": 0.1,
                "host_file": str(host_file(self.layout, name)),
            }
        }
        more = {"heartbeat_seconds": 0.2, **host, **settings}
        path = write_configuration(self.layout, name, self.stack.node_api_url, folder, more)
        child = Child(
            name,
            installed_program("sliceplane-agent", str(path)),
            self.layout.logs / f"{name}.log",
        )
        child.start()
        return Agent(child)

    def approve(self, name: str) -> None:
        def slots() -> list[dict[str, Any]]:
            return self.api.items("/slots", node=name)

        until(lambda: len(slots()) == 2, "the node's slots are discovered")
        for index in (0, 1):
            self.api.post(f"/nodes/{name}/slots/{index}/approve")
        until(
            lambda: self.api.get(f"/nodes/{name}")["state"] == "enrolled",
            "the node is enrolled",
        )

    def make_slice(self) -> str:
        """Create an allocation, wait until it is active, and return its id."""
        made = str(self.api.post("/allocations", {"sku": "lab.small", "ssh_authorized_keys": [KEY]})["id"])
        until(lambda: self.state(made) == "active", f"{made} is active", 40.0)
        return made

    def release(self, allocation: str) -> None:
        self.api.delete(f"/allocations/{allocation}")
        until(
            lambda: self.state(allocation) == "released",
            f"{allocation} is released",
            40.0,
        )

    def state(self, allocation: str) -> str:
        return str(self.api.get(f"/allocations/{allocation}")["state"])

    def restart_with(self, certificates: Certificates) -> None:
        """Restart the API and Redis with these certificates."""
        self.restart_api_with(certificates.server)
        self.stack.certificates = certificates
        self.redis.stop()
        self.stack.supervise()

    def restart_api_with(self, server: Path) -> None:
        api = self.stack.programs["api"]
        files = ("SLICEPLANE_TLS_CERTIFICATE_FILE", "SLICEPLANE_TLS_KEY_FILE")
        api.environment = {**api.environment, **dict.fromkeys(files, str(server))}
        api.stop()
        api.start()

    @property
    def redis(self) -> embedded_redis.RedisServer:
        found = self.stack._redis
        assert found is not None
        return found
