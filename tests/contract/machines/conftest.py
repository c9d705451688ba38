import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from node_agent.aspects.machines import Machines
from node_agent.lab.guest import GuestImage
from node_agent.lab.lab import Lab
from tests.contract.machines.halting_guest import halting_guest
from tests.contract.machines.hosts import Host, Simulated, machines_of, real_host, store_image
from tests.servers.lab import kept_folder, run_id


@pytest.fixture(scope="session")
def guest_on_disk(guest_image: GuestImage) -> Iterator[Path]:
    """Folder of a node's images that contains the lab's guest image. QEMU, which does not run as root, can read this
    folder.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        store_image(folder, guest_image)
        yield folder


@pytest.fixture(scope="session")
def halting_on_disk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Folder of a node's images, like `guest_on_disk`, with a guest image that halts instead of booting."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        store_image(folder, halting_guest(tmp_path_factory.mktemp("halting")))
        yield folder


@pytest.fixture(scope="package")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """Separate lab for the tests of virtual machines. On the shared lab nodes, the nftables rules that the network
    tests leave would block the traffic of the guests.
    """
    folder = tmp_path_factory.mktemp("machines-lab")
    with Lab(run_id(), folder, ["lab-a"], kept_folder() / "libvirt") as lab:
        yield lab


@pytest.fixture(params=["simulated", pytest.param("real", marks=pytest.mark.node)])
def host(request: pytest.FixtureRequest) -> Iterator[Host]:
    if request.param == "simulated":
        yield Simulated()
        return
    lab: Lab = request.getfixturevalue("lab")
    with real_host(lab.node("lab-a"), request.getfixturevalue("halting_on_disk")) as real:
        yield real


@pytest.fixture
def machines(host: Host) -> Machines:
    return machines_of(host)
