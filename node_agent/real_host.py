"""The host as it is: the aspects over the drivers that touch it. Imported only by an agent of a real node."""

import stat
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from events.values import Ipv4Subnet
from node_agent.devices import absent_devices_of, devices_of, pci_devices_of
from node_agent.drivers.dhcp import DnsmasqLeases
from node_agent.drivers.disks import DisksFolder
from node_agent.drivers.host_routing import NetlinkRouting
from node_agent.drivers.libvirt import LibvirtHypervisor
from node_agent.drivers.links import NetlinkLinks
from node_agent.drivers.nat import Nftables
from node_agent.drivers.ovs import OpenVSwitch
from node_agent.drivers.probing import Prober
from node_agent.drivers.sources import (
    files_in,
    ipsec_policies,
    links_and_routes,
    packet_filter,
    static_neighbours,
)
from node_agent.drivers.sysfs import SysfsPci
from node_agent.drivers.watching import HostWatch, Source
from node_agent.durable import open_folder
from node_agent.gateway import Gateway, node_network
from node_agent.host import Host
from node_agent.hypervisors import Disks, Hypervisor
from node_agent.images import ImagesFolder
from node_agent.leases import LeaseAspect
from node_agent.links import LinkAspect
from node_agent.machines import Machines
from node_agent.passthrough import PciBus
from node_agent.ports import PortAspect
from node_agent.readiness import BannerProbe
from node_agent.settings import Settings, SettingsRefused
from node_agent.translations import TranslationAspect


def real_host(settings: Settings, subnet: Ipv4Subnet, something_changed: Callable[[], None]) -> Host:
    """Connects to nothing yet: each driver does at its first use, and again when it must.

    Raises `SettingsRefused` when DHCP's server and QEMU, which are users of their own, could not reach their files.
    """
    network = node_network(settings, subnet)
    switch, filter_ = OpenVSwitch(settings.ovs_folder), Nftables()
    links = NetlinkLinks(switch.offloads)
    run_folder = _reachable(open_folder(settings.run_folder))
    dhcp = DnsmasqLeases(run_folder / "dhcp", network, links, something_changed)
    hypervisor = LibvirtHypervisor(settings.libvirt_uri, something_changed)
    bus, places = SysfsPci(settings.sysfs_root), settings.places
    images = ImagesFolder(settings.images_folder)
    leases = LeaseAspect(dhcp)
    disks = DisksFolder(run_folder / "disks")
    machines = _machines(settings, hypervisor, disks, images, bus, is_plugged=links.is_carried)
    prober = Prober(network, something_changed)
    ends = ExitStack()
    for close in (links.close, switch.close, dhcp.close, hypervisor.close, prober.close):
        ends.callback(close)

    def look_ahead() -> None:
        switch.look_ahead(network.bridge)
        filter_.look_ahead()
        machines.look_ahead(hypervisor.ask_domains)

    def changed() -> None:
        prober.hurry()
        something_changed()

    def listen() -> None:
        sources = sources_of(network.bridge, switch, dhcp)
        ends.callback(HostWatch(sources, changed).stop)

    return Host(
        aspects=(
            LinkAspect(links, bus, places),
            leases,
            PortAspect(switch),
            TranslationAspect(filter_, settings.uplink),
            machines,
        ),
        gateway=Gateway(network, switch, links, filter_, dhcp, routing=NetlinkRouting(links)),
        observe_address=leases.observe_address,
        probe=BannerProbe(),
        reachability=prober,
        images=images.names,
        devices=devices_of(settings, links, bus),
        absent_devices=absent_devices_of(settings, links),
        pci_devices=pci_devices_of(places, bus),
        check_machines=machines.check,
        inspect_machine=machines.inspect,
        runs=machines.runs,
        to_shut_down=machines.to_shut_down,
        look_ahead=look_ahead,
        listen=listen,
        close=ends.close,
    )


def _machines(
    settings: Settings,
    hypervisor: Hypervisor,
    disks: Disks,
    images: ImagesFolder,
    bus: PciBus,
    *,
    is_plugged: Callable[[str], bool],
) -> Machines:
    # Userspace OVS hands on frames whose checksums nobody filled in: there a guest must not offload them.
    return Machines(
        hypervisor,
        disks,
        images,
        settings.accelerator,
        offload=settings.datapath_type == "system",
        is_plugged=is_plugged,
        bus=bus,
        places=settings.places,
    )


def sources_of(bridge: str, switch: OpenVSwitch, dhcp: DnsmasqLeases) -> dict[str, Source]:
    """Sources of changes of the host by name: the names of the catalogue of drift, and one more of rtnetlink's."""
    return {
        "rtnetlink": links_and_routes,
        "neighbours": static_neighbours,
        "nfnetlink": packet_filter,
        "xfrm": ipsec_policies,
        "inotify": files_in(*dhcp.folders),
        **switch.sources(bridge),
    }


def _reachable(folder: Path) -> Path:
    """Checked at the start, because dnsmasq says nothing of reservations it may not read: it just offers none."""
    for each in (folder, *folder.resolve().parents):
        if not each.stat().st_mode & stat.S_IXOTH:
            raise SettingsRefused(f"run_folder {folder}: other users may not pass through {each}")
    return folder
