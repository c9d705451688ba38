"""Devices that a host is to have beside its uplink, when its settings name them (NOD-6, TSK-2).

A virtual function belongs to a physical one, and a BlueField's host side talks to the card over the link `tmfifo_net0`;
both are links of the host. Where no such device is configured, none is wanted.
"""

from collections.abc import Callable
from typing import Final

from node_agent.host import Prerequisite
from node_agent.links import Links
from node_agent.settings import Settings
from node_agent.slices import Difference, HostUnreadable

NOT_CONFIGURED: Final = "not configured"


def devices_of(settings: Settings, links: Links) -> Callable[[], tuple[Prerequisite, ...]]:
    """What to ask for the state of the devices; it raises nothing."""
    wanted = (("vf", settings.vf_parent), ("bf3", settings.bf3_link))
    return lambda: tuple(_device(name, link, links) for name, link in wanted)


def absent_devices_of(settings: Settings, links: Links) -> Callable[[], tuple[Difference, ...]]:
    """What to ask for the devices that are not there. It raises `HostUnreadable`."""
    wanted = [link for link in (settings.vf_parent, settings.bf3_link) if link is not None]

    def absent() -> tuple[Difference, ...]:
        gone = (link for link in wanted if links.link(link) is None)
        return tuple(Difference("device.absent", f"link {link}", "no such link") for link in gone)

    return absent


def _device(name: str, link: str | None, links: Links) -> Prerequisite:
    if link is None:
        return Prerequisite(name, ok=True, detail=NOT_CONFIGURED)
    try:
        return Prerequisite(name, ok=links.link(link) is not None, detail=f"link {link}")
    except HostUnreadable as error:
        return Prerequisite(name, ok=False, detail=f"link {link}: {error}")
