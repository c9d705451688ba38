"""Host resources of a slot's virtual machine that every host under test has: pinned CPUs, and a network card with
several queues.
"""

import json
import os
from pathlib import Path
from typing import Final

import pytest

from events.values import SlotIndex
from node_agent.aspects.machines import Machines
from node_agent.host.guests import guest_for
from node_agent.host.host_resources import Place, place_for
from node_agent.host.slices import HostRefused
from node_agent.lab.lab import Lab, LabNode
from tests.contract.machines.hosts import Host, machines_of, real_host
from tests.lab.awaiting import eventually
from tests.node.guests import slice_on

WANTED: Final = slice_on(0, vcpus=2)
FIRST, LAST = (f(os.sched_getaffinity(0)) for f in (min, max))
PINNED: Final = {SlotIndex(0): Place(pins=(str(LAST), str(FIRST)))}
SEVERAL: Final = {SlotIndex(0): Place(queues=2)}


def apply(machines: Machines) -> list[str]:
    steps = machines.to_apply(WANTED)
    for step in steps:
        step.run()
    return [step.name for step in steps]


def test_virtual_cpus_are_pinned_at_machine_start_and_pinned_again_after_an_operator_moved_them(
    host: Host,
) -> None:
    host.add_tap("slice0")
    machines = machines_of(host, PINNED)
    assert apply(machines) == ["machine.write_seed", "machine.start"]
    (domain,) = host.hypervisor.domains()
    assert domain.guest == guest_for(WANTED, place_for(WANTED, PINNED))
    host.repin(domain, FIRST)
    eventually(lambda: machines.to_apply(WANTED) != () or FIRST == LAST)
    assert apply(machines) == ([] if FIRST == LAST else ["machine.pin"])
    assert apply(machines) == []


def test_virtual_machine_with_several_network_queues_needs_a_tap_with_several_queues(host: Host) -> None:
    host.add_tap("slice0")
    machines = machines_of(host, SEVERAL)
    with pytest.raises(HostRefused, match="slice0"):
        apply(machines)
    host.delete_tap("slice0")
    host.add_tap("slice0", many=True)
    assert apply(machines) == ["machine.start"]
    (domain,) = host.hypervisor.domains()
    assert domain.guest == guest_for(WANTED, place_for(WANTED, SEVERAL))
    assert apply(machines) == []


@pytest.mark.node
def test_each_virtual_cpu_runs_on_its_own_cpu_of_the_host(lab: Lab, halting_on_disk: Path) -> None:
    node = lab.node("lab-a")
    with real_host(node, halting_on_disk) as host:
        host.add_tap("slice0")
        apply(machines_of(host, PINNED))
        assert allowed(node) == {"CPU 0/TCG": str(LAST), "CPU 1/TCG": str(FIRST)}


@pytest.mark.node
def test_booted_guest_uses_every_queue_of_its_network_card(lab: Lab, guest_on_disk: Path) -> None:
    node = lab.node("lab-a")
    with real_host(node, guest_on_disk) as host:
        host.add_tap("slice0", many=True)
        apply(machines_of(host, SEVERAL))
        eventually(lambda: queues(node) == 2, 40)


def allowed(node: LabNode) -> dict[str, str]:
    """Return, for each virtual CPU of the running guest, the host CPUs on which its thread may run."""
    (qemu,) = (pid for pid, argv in node.processes().items() if argv[0].endswith("qemu-system-x86_64"))
    threads = [path.read_text() for path in Path(f"/proc/{qemu}/task").glob("*/status")]
    fields_of_threads = (
        dict(line.split(":\t", 1) for line in thread.splitlines() if ":\t" in line) for thread in threads
    )
    return {
        each["Name"]: each["Cpus_allowed_list"]
        for each in fields_of_threads
        if each["Name"].startswith("CPU ")
    }


def queues(node: LabNode) -> int:
    """Return the number of queues of the slice's tap that are in use. QEMU opens all queues, and the guest's driver
    enables those that it needs.
    """
    (link,) = json.loads(node.run(["ip", "-json", "-details", "link", "show", "slice0"]).stdout)
    return int(link["linkinfo"]["info_data"]["numqueues"])
