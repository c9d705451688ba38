"""The real host: all aspects, connected to the drivers that change the host. A simulated node does not import it."""

import stat
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from events.values import Ipv4Subnet
from node_agent.aspects.devices import (
    absent_devices_of,
    describe_devices_of,
    devices_of,
    pci_devices_of,
    read_health_of,
)
from node_agent.aspects.gateway import Gateway, node_network
from node_agent.aspects.gpu_partitions import NoFabricManager
from node_agent.aspects.hypervisors import Disks, Hypervisor, KeptLogs
from node_agent.aspects.leases import LeaseAspect
from node_agent.aspects.links import LinkAspect
from node_agent.aspects.machines import Machines
from node_agent.aspects.passthrough import PciBus
from node_agent.aspects.ports import PortAspect
from node_agent.aspects.translations import TranslationAspect
from node_agent.drivers.device_files import HostDeviceFiles
from node_agent.drivers.dhcp.dhcp import DnsmasqLeases
from node_agent.drivers.machines.disks import DisksFolder
from node_agent.drivers.machines.kept_logs import KeptLogsFolder
from node_agent.drivers.machines.libvirt import LibvirtHypervisor
from node_agent.drivers.machines.root_disks import NoRootDisks, RootDisksFolder
from node_agent.drivers.network.host_routing import NetlinkRouting
from node_agent.drivers.network.links import NetlinkLinks
from node_agent.drivers.network.nat import Nftables
from node_agent.drivers.network.ovs import OpenVSwitch
from node_agent.drivers.network.sources import (
    files_in,
    ipsec_policies,
    links_and_routes,
    packet_filter,
    static_neighbours,
)
from node_agent.drivers.probes.probing import Prober
from node_agent.drivers.sysfs import SysfsPci
from node_agent.drivers.watching import HostWatch, Source
from node_agent.host.host import Host
from node_agent.host.images import ImagesFolder
from node_agent.runtime.durable import open_folder
from node_agent.settings import Settings, SettingsRefused
from node_agent.slots.readiness import BannerProbe


def real_host(settings: Settings, subnet: Ipv4Subnet, something_changed: Callable[[], None]) -> Host:
    """Return the real host, with drivers that are not connected: each connects at its first use, and again if needed.

    Raises `SettingsRefused` if the DHCP server and QEMU, which run as other users, cannot access their files, or if the
    settings of the root disks cannot be used.
    """
    network = node_network(settings, subnet)
    switch, filter_ = OpenVSwitch(settings.ovs_folder), Nftables()
    links = NetlinkLinks(switch.offloads)
    run_folder = _accessible(open_folder(settings.run_folder))
    dhcp = DnsmasqLeases(run_folder / "dhcp", network, links, something_changed)
    hypervisor = LibvirtHypervisor(settings.libvirt_uri, something_changed)
    bus, places = SysfsPci(settings.sysfs_root), settings.places
    device_files = HostDeviceFiles(settings.sysfs_root, settings.procfs_root)
    images = ImagesFolder(settings.images_folder)
    leases = LeaseAspect(dhcp)
    disks, kept_logs = DisksFolder(run_folder / "disks"), KeptLogsFolder(run_folder / "serial-logs")
    machines = _machines(
        settings, hypervisor, disks, images, bus, kept_logs=kept_logs, is_plugged=links.is_in_use
    )
    prober = Prober(network, something_changed)
    ends = ExitStack()
    for close in (links.close, switch.close, dhcp.close, hypervisor.close, prober.close):
        ends.callback(close)

    def start_reading() -> None:
        switch.start_reading(network.bridge)
        filter_.start_reading()
        machines.start_reading(hypervisor.start_listing_domains)

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
        describe_devices=describe_devices_of(places, device_files),
        read_device_health=read_health_of(places, bus, device_files),
        check_machines=machines.check,
        inspect_machine=machines.inspect,
        serial_log=machines.serial_log,
        delete_expired_logs=machines.delete_expired_logs,
        open_console=machines.open_console,
        open_display=machines.open_display,
        open_ssh=machines.open_ssh,
        runs=machines.runs,
        to_shut_down=machines.to_shut_down,
        start_reading=start_reading,
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
    kept_logs: KeptLogs,
    is_plugged: Callable[[str], bool],
) -> Machines:
    root_disks = NoRootDisks() if settings.root_disks is None else RootDisksFolder(settings.root_disks)
    # Userspace OVS forwards frames without filling in their checksums, so a guest must not offload them there.
    return Machines(
        hypervisor,
        disks,
        root_disks,
        images,
        settings.accelerator,
        kept_logs=kept_logs,
        offload=settings.datapath_type == "system",
        is_plugged=is_plugged,
        bus=bus,
        places=settings.places,
        fabric_manager=NoFabricManager(),
    )


def sources_of(bridge: str, switch: OpenVSwitch, dhcp: DnsmasqLeases) -> dict[str, Source]:
    """Return the sources of change notifications of the host, by name. Each notification starts a survey.

    The names are those in the drift catalogue (`tasks.drift.Source`), which states for each kind of drift the source
    that detects it; `neighbours` is an additional name, for the notifications of rtnetlink about static ARP entries.
    """
    return {
        "rtnetlink": links_and_routes,
        "neighbours": static_neighbours,
        "nfnetlink": packet_filter,
        "xfrm": ipsec_policies,
        "inotify": files_in(*dhcp.folders),
        **switch.sources(bridge),
    }


def _accessible(folder: Path) -> Path:
    """Return `folder` if other users can traverse the path to it. Raises `SettingsRefused` otherwise.

    The path is checked at the agent's start, because dnsmasq silently ignores reservation files that it cannot read.
    """
    for each in (folder, *folder.resolve().parents):
        if not each.stat().st_mode & stat.S_IXOTH:
            raise SettingsRefused(
                f"run_folder {folder} cannot be used: other users cannot traverse the folder {each}; run chmod o+x {each}, or choose another run_folder"
            )
    return folder
