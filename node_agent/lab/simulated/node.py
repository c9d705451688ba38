"""A node without a host: the same agent over drivers that hold a host in memory (NOD-13).

`python -m node_agent CONFIG` is one when its configuration says `simulated`; `node_agent.wiring.run` runs as many of
them in one process as it has threads for.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Final

from events.values import Ipv4Subnet, image_name
from node_agent.devices import absent_devices_of, devices_of, pci_devices_of
from node_agent.gateway import Gateway, node_network
from node_agent.host import Host
from node_agent.images import FixedImages, Image
from node_agent.lab.simulated.dhcp import SimulatedLeases
from node_agent.lab.simulated.host import SimulatedHost
from node_agent.lab.simulated.links import SimulatedLinks
from node_agent.lab.simulated.machines import SimulatedDisks, SimulatedHypervisor, SimulatedProbe
from node_agent.lab.simulated.nat import SimulatedFilter
from node_agent.lab.simulated.ovs import SimulatedSwitch
from node_agent.lab.simulated.pci import SimulatedPci, plug_in
from node_agent.lab.simulated.reaching import SimulatedReachability
from node_agent.lab.simulated.routing import SimulatedRouting
from node_agent.leases import LeaseAspect
from node_agent.links import LinkAspect
from node_agent.machines import Machines
from node_agent.places import Places
from node_agent.ports import PortAspect
from node_agent.settings import Settings, SimulatedHostSettings, SimulatedImage
from node_agent.translations import TranslationAspect

LAB_GUEST: Final = SimulatedImage(name=image_name("lab-guest"))
"""The image of every simulated node, called as the lab's guest is."""


def simulated_host(settings: Settings, subnet: Ipv4Subnet, something_changed: Callable[[], None]) -> Host:
    """A host of its own in memory, or the one that its file remembers."""
    simulated = settings.simulated or SimulatedHostSettings()
    return host_over(SimulatedHost(simulated.host_file, settings.uplink), settings, subnet, something_changed)


def host_over(
    host: SimulatedHost, settings: Settings, subnet: Ipv4Subnet, something_changed: Callable[[], None]
) -> Host:
    """What an agent sees of this host."""
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
    plug_in(host, places.values())
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
        check_machines=machines.check,
        inspect_machine=machines.inspect,
        runs=machines.runs,
        to_shut_down=machines.to_shut_down,
        look_ahead=lambda: None,
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
        images,
        "qemu",
        offload=True,
        is_plugged=links.is_carried,
        bus=SimulatedPci(host),
        places=places,
    )
