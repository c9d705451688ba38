"""A simulated node: the same agent as on a real node, with drivers that simulate a host in memory (NOD-13).

`sliceplane-agent CONFIG` runs a simulated node if its configuration contains `simulated`. A process can run many
simulated nodes, each with its own `node_agent.wiring.Agent`. Their jobs share one scheduler
(`node_agent.runtime.timetable`).
"""

from collections.abc import Callable
from pathlib import Path
from typing import Final

from events.values import Ipv4Subnet, image_name
from node_agent.aspects.devices import (
    absent_devices_of,
    describe_devices_of,
    devices_of,
    pci_devices_of,
    read_health_of,
)
from node_agent.aspects.gateway import Gateway, node_network
from node_agent.aspects.leases import LeaseAspect
from node_agent.aspects.links import LinkAspect
from node_agent.aspects.machines import Machines
from node_agent.aspects.ports import PortAspect
from node_agent.aspects.translations import TranslationAspect
from node_agent.host.host import Host
from node_agent.host.host_resources import Places
from node_agent.host.images import FixedImages, Image
from node_agent.lab.simulated.dhcp import SimulatedLeases
from node_agent.lab.simulated.gpu_partitions import SimulatedFabricManager, add_partitions
from node_agent.lab.simulated.host import SimulatedHost
from node_agent.lab.simulated.links import SimulatedLinks
from node_agent.lab.simulated.machines import (
    SimulatedDisks,
    SimulatedHypervisor,
    SimulatedKeptLogs,
    SimulatedProbe,
    SimulatedRootDisks,
)
from node_agent.lab.simulated.nat import SimulatedFilter
from node_agent.lab.simulated.ovs import SimulatedSwitch
from node_agent.lab.simulated.pci import SimulatedPci, add_pci_devices
from node_agent.lab.simulated.reaching import SimulatedReachability
from node_agent.lab.simulated.routing import SimulatedRouting
from node_agent.settings import Settings, SimulatedHostSettings, SimulatedImage

LAB_GUEST: Final = SimulatedImage(name=image_name("lab-guest"))
"""Settings of the image that every simulated node has. It has the same name as the image of the lab's guest."""


def simulated_host(settings: Settings, subnet: Ipv4Subnet, something_changed: Callable[[], None]) -> Host:
    """Create the host of a simulated node: from the node's state file if there is one, else a new host in memory."""
    simulated = settings.simulated or SimulatedHostSettings()
    return assemble_simulated_host(
        SimulatedHost(simulated.host_file, settings.uplink), settings, subnet, something_changed
    )


def assemble_simulated_host(
    host: SimulatedHost, settings: Settings, subnet: Ipv4Subnet, something_changed: Callable[[], None]
) -> Host:
    """Combine the simulated drivers of a host into the interface that an agent uses."""
    simulated = settings.simulated or SimulatedHostSettings()
    switch, links, filter_, dhcp = (
        SimulatedSwitch(host),
        SimulatedLinks(host),
        SimulatedFilter(host),
        SimulatedLeases(host),
    )
    hypervisor = SimulatedHypervisor(host, something_changed, simulated.boot_seconds)
    leases = LeaseAspect(dhcp)
    described = (LAB_GUEST, *simulated.images)
    images = FixedImages(tuple(Image(each.name, Path("kernel"), Path("initrd"), "") for each in described))
    bus, places = SimulatedPci(host), settings.places
    add_pci_devices(host, places.values())
    add_partitions(host, simulated.gpu_partitions)
    machines = _machines(host, hypervisor, images, links, places)
    return Host(
        aspects=(
            LinkAspect(links, bus, places),
            leases,
            PortAspect(switch),
            TranslationAspect(filter_, settings.uplink),
            machines,
        ),
        gateway=Gateway(
            node_network(settings, subnet), switch, links, filter_, dhcp, routing=SimulatedRouting(host)
        ),
        observe_address=leases.observe_address,
        probe=SimulatedProbe(host, hypervisor, described),
        reachability=SimulatedReachability(host),
        images=images.names,
        devices=devices_of(settings, links, bus),
        absent_devices=absent_devices_of(settings, links),
        pci_devices=pci_devices_of(places, bus),
        describe_devices=describe_devices_of(places, bus),
        read_device_health=read_health_of(places, bus, bus),
        check_machines=machines.check,
        inspect_machine=machines.inspect,
        serial_log=machines.serial_log,
        delete_expired_logs=machines.delete_expired_logs,
        open_console=machines.open_console,
        open_display=machines.open_display,
        open_ssh=machines.open_ssh,
        runs=machines.runs,
        to_shut_down=machines.to_shut_down,
        start_reading=lambda: None,
        listen=lambda: None,
        close=lambda: None,
    )


def _machines(
    host: SimulatedHost,
    hypervisor: SimulatedHypervisor,
    images: FixedImages,
    links: SimulatedLinks,
    places: Places,
) -> Machines:
    return Machines(
        hypervisor,
        SimulatedDisks(host),
        SimulatedRootDisks(host),
        images,
        "qemu",
        kept_logs=SimulatedKeptLogs(host),
        offload=True,
        is_plugged=links.is_in_use,
        bus=SimulatedPci(host),
        places=places,
        fabric_manager=SimulatedFabricManager(host),
    )
