"""Fixtures of the passthrough tests: a control plane, and a node with an agent on a nested lab host. Emulated PCI
functions of the host stand in for GPUs and fabric devices.

The tests need minutes on an emulated processor, so only `./dev torture` runs them.
"""

import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest

from deploy.embedded.children import REPOSITORY, installed_program
from deploy.embedded.postgres import PostgresServer
from events.values import PciAddress, SlotIndex, pci_address
from node_agent.lab.login import ssh
from node_agent.lab.nested.host import EmulatedFunction, NestedHost
from node_agent.lab.nested.kernel import ensure_nested_kernel
from node_agent.settings import Settings, SlotSettings
from tests import matrix
from tests.agent.real_node import RUN_FOLDER, guest_images
from tests.api.node import register_node
from tests.servers.lab import kept_folder
from tests.servers.plane import RunningPlane, running
from tests.waiting import until

collect_ignore_glob = [] if matrix.is_full() else ["test_*.py"]
NODE: Final = "nested-a"
FUNCTIONS: Final = (
    EmulatedFunction("gpu0", "nvme,serial=gpu0", numa_node=1),
    EmulatedFunction("fabric0", "e1000e,mac=02:00:00:00:00:f0", numa_node=1),
    EmulatedFunction("kept", "nvme,serial=kept", kept_by_host=True),
    EmulatedFunction("shared", "nvme,serial=shared", neighbour="nvme,serial=neighbour"),
    EmulatedFunction("removed", "nvme,serial=removed"),
    EmulatedFunction(
        "card",
        "nvme,serial=card,subsys=subsystem,max_ioqpairs=4,msix_qsize=6,sriov_max_vfs=1,sriov_vq_flexible=2,sriov_vi_flexible=1",
        kept_by_host=True,
        needs=("nvme-subsys,id=subsystem",),
    ),
)
# A SKU without GPUs accepts every slot. The model of an emulated function is unknown, so no SKU can name it.
SKU: Final = {
    "vcpus": 1,
    "memory_mib": 192,
    "network_modes": ["private-nat"],
    "provisioning_seconds": 1500,
}
BOOT_SECONDS: Final = 1200.0
"""Timeout in seconds until a guest of the nested host answers."""


@dataclass
class NestedSite:
    """Control plane and a node on a nested host."""

    plane: RunningPlane
    host: NestedHost
    key: Path

    @property
    def public_key(self) -> str:
        return self.key.with_suffix(".pub").read_text().strip()

    def slot(self, index: int) -> dict[str, Any]:
        answer = self.plane.client().get(f"/nodes/{NODE}/slots/{index}")
        return dict(answer.json()) if answer.is_success else {}

    def offer(self, slot: int) -> str:
        """Create a SKU for one slot, wait until the slot is discovered, approve it, and return the name of the SKU."""
        client, sku = self.plane.client(), f"nested.{slot}"
        assert client.post("/skus", json={**SKU, "name": sku}).is_success
        until(lambda: bool(self.slot(slot)), "the slot is discovered", BOOT_SECONDS)
        approved = client.post(f"/nodes/{NODE}/slots/{slot}/approve", json={"skus": [sku]})
        assert approved.is_success, approved.text
        open_ = "the node is open for placement"
        until(lambda: client.get(f"/nodes/{NODE}").json()["blocked_by"] is None, open_, BOOT_SECONDS)
        return sku

    def allocate(self, sku: str) -> str:
        """Request an allocation, wait until it is active, and return its id."""
        name = self.attempt(sku)
        assert self.state(name) == "active", self.show(name)
        return name

    def attempt(self, sku: str) -> str:
        """Request an allocation, wait until it is active or has failed, and return its id."""
        body = {"sku": sku, "ssh_authorized_keys": [self.public_key], "node": NODE}
        answer = self.plane.client().post("/allocations", json=body)
        assert answer.status_code == 202, answer.text
        name = str(answer.json()["id"])
        until(lambda: self.state(name) in {"active", "failed"}, f"{name} is active or failed", BOOT_SECONDS)
        return name

    def release(self, allocation: str) -> None:
        assert self.plane.client().delete(f"/allocations/{allocation}").is_success
        until(lambda: self.state(allocation) == "released", f"{allocation} is released", BOOT_SECONDS)

    def show(self, allocation: str) -> dict[str, Any]:
        return dict(self.plane.client().get(f"/allocations/{allocation}").json())

    def state(self, allocation: str) -> str:
        return str(self.show(allocation)["state"])

    def guest(self, allocation: str, command: str) -> str:
        """Run a shell command in the allocation's first guest and return its output."""
        address = self.show(allocation)["slots"][0]["private_ip"]
        done = self.host.run(ssh(address, self.key, [command]), check=False, seconds=BOOT_SECONDS)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def driver_of(self, address: PciAddress) -> str:
        """Return the name of the host's driver that is bound to a PCI function; empty if none is."""
        link = f"/sys/bus/pci/devices/{address}/driver"
        return self.host.run(["sh", "-c", f"basename $(readlink {link})"], check=False).stdout.strip()


@pytest.fixture(scope="module")
def site(postgres_server: PostgresServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[NestedSite]:
    folder = tmp_path_factory.mktemp("nested")
    key = folder / "key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)], check=True)
    kernel = ensure_nested_kernel(kept_folder() / "nested-kernel", print)
    images = guest_images()
    with running(postgres_server) as plane:
        ports = [int(plane.url.rpartition(":")[2]), plane.settings.queue_port]
        host = NestedHost(NODE, folder, kernel, FUNCTIONS, ports)
        try:
            host.start()
            card = f"/sys/bus/pci/devices/{host.address('card')}"
            host.run(["sh", "-ec", f"echo 1 > {card}/sriov_numvfs"])
            start_agent(host, plane, images)
            # Copies the console of the first slot's guests into the log folder, which outlives the host.
            host.start_daemon("guest", ["tail", "-n", "+1", "-F", f"{RUN_FOLDER}/disks/slice0/console.log"])
            yield NestedSite(plane, host, key)
        finally:
            host.stop()


def virtual_function(host: NestedHost) -> PciAddress:
    """Return the address of the virtual function of the network card, which is created at the start of the tests."""
    return pci_address(host.address("card").replace(":00.0", ":00.1"))


def start_agent(host: NestedHost, plane: RunningPlane, images: Path) -> None:
    token = host.folder / "token"
    token.write_text(register_node(plane, NODE))
    settings = Settings(
        node_id=NODE,
        api_url=plane.url,
        enrolment_token_file=token,
        state_folder=Path("/run/agent"),
        run_folder=Path(RUN_FOLDER),
        images_folder=images,
        datapath_type="netdev",
        slots=(
            SlotSettings(
                index=SlotIndex(0),
                vcpus=1,
                memory_mib=192,
                gpus=(host.address("gpu0"),),
                fabric=(host.address("fabric0"),),
                numa_node=1,
            ),
            *(
                SlotSettings(index=SlotIndex(index), vcpus=1, memory_mib=192, gpus=(host.address(name),))
                for index, name in enumerate(("kept", "shared", "removed"), 1)
            ),
            SlotSettings(index=SlotIndex(4), vcpus=1, memory_mib=192, vf=virtual_function(host)),
        ),
        # Under emulation, surveys in short intervals need half of the host's processor time, which a guest lacks then.
        survey_seconds=120,
        heartbeat_seconds=2,
        log="json",
    )
    config = host.folder / "agent.json"
    config.write_text(settings.model_dump_json(exclude_unset=True))
    host.start_daemon(
        "agent", installed_program("sliceplane-agent", str(config)), {"PYTHONPATH": str(REPOSITORY)}
    )
