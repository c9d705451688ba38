"""A lab node's first process: it makes the mounts that give every daemon its usual paths, then supervises them.

Started by `unshare --net --mount --uts --pid --fork --kill-child --mount-proc python -m node_agent.lab.host CONFIG`.
Order: mounts, libvirt's configuration, OVS's database, daemons; addresses when the lab has plugged the cards in.
What a reboot of a real host loses lies on tmpfs here (OVS's database too: the agent rebuilds it), what it keeps
lies in the node's folder. A crash leaves that folder and nothing else.
"""

import fcntl
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Final

import msgspec
import structlog

from node_agent.lab.control import Daemon
from node_agent.lab.netlink import index_of, open_links
from node_agent.lab.supervisor import Supervisor, take_voice

log = structlog.get_logger()

MANAGEMENT: Final = "mgmt0"
UPLINK: Final = "uplink0"
VOLATILE: Final = (
    "/run",
    "/etc/openvswitch",
    "/etc/libvirt",
    "/var/lib/libvirt",
    "/var/lib/openvswitch",
    "/var/lib/misc",
)
"""Hidden from the machine's own daemons and empty at every start, as after a reboot."""
_DATABASE: Final = "/etc/openvswitch/conf.db"
_SOCKET: Final = "unix:/run/openvswitch/db.sock"

# Root without cgroups, labels and mount namespaces: the namespaces around this host are its fence.
_QEMU_CONF: Final = """\
user = "root"
group = "root"
security_driver = "none"
cgroup_controllers = []
namespaces = []
remember_owner = 0
"""
_LIBVIRTD_CONF: Final = 'auth_unix_rw = "none"\nauth_unix_ro = "none"\n'


class HostConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`management` and `uplink` are addresses with their prefix lengths; `gateway` is the default route."""

    name: str
    folder: str
    management: str
    uplink: str
    gateway: str


def main() -> None:
    voice = take_voice()
    config = msgspec.json.decode(Path(sys.argv[1]).read_bytes(), type=HostConfig)
    folder = Path(config.folder)
    held = _hold(folder)
    log.info("host_starting", node=config.name, lock=held)
    _mount(folder)
    _name(config.name, folder)
    _configure_libvirt()
    subprocess.run(
        ["ovsdb-tool", "create", _DATABASE, "/usr/share/openvswitch/vswitch.ovsschema"], check=True
    )
    Path("/proc/sys/net/ipv4/ip_forward").write_text("1")
    Supervisor(voice, folder, _daemons(), lambda: _configure_links(config)).run()


def _hold(folder: Path) -> int:
    """Own the folder until this process is gone; a predecessor that is just dying is waited for."""
    descriptor = os.open(folder / "host.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    return descriptor


def _mount(folder: Path) -> None:
    for path in VOLATILE:
        Path(path).mkdir(parents=True, exist_ok=True)
        _run("mount", "-t", "tmpfs", "-o", "mode=755", "tmpfs", path)
    for path in ("/run/lock", "/run/openvswitch", "/run/libvirt", "/etc/libvirt/qemu"):
        Path(path).mkdir()
    # The machine's sysfs shows the machine's network cards.
    _run("mount", "-t", "sysfs", "sysfs", "/sys")
    kept = {
        folder / "log" / "openvswitch": "/var/log/openvswitch",
        folder / "log" / "libvirt": "/var/log/libvirt",
        # libvirt's first probe of QEMU takes seconds; its answer is good until QEMU or the kernel changes.
        folder / "cache": "/var/cache/libvirt",
    }
    for source, path in kept.items():
        source.mkdir(parents=True, exist_ok=True)
        Path(path).mkdir(parents=True, exist_ok=True)
        _run("mount", "--bind", str(source), path)


def _name(name: str, folder: Path) -> None:
    """Know the host's own name, and ask nobody about others.

    The machine's resolver is out of reach here, and libvirt looks this name up at every domain's start: ten
    seconds of silence each.
    """
    socket.sethostname(name)
    texts = {"hosts": f"127.0.0.1 localhost\n127.0.1.1 {name}\n", "resolv.conf": ""}
    for file, text in texts.items():
        (folder / file).write_text(text)
        place = Path("/etc", file).resolve()
        if place.is_relative_to("/run"):
            # A link into the machine's /run, which is hidden here.
            place.parent.mkdir(parents=True, exist_ok=True)
            place.touch()
        if place.exists():
            _run("mount", "--bind", str(folder / file), str(place))


def _configure_libvirt() -> None:
    Path("/etc/libvirt/qemu.conf").write_text(_QEMU_CONF)
    Path("/etc/libvirt/libvirtd.conf").write_text(_LIBVIRTD_CONF)


def _configure_links(config: HostConfig) -> None:
    with open_links() as links:
        links.link("set", index=index_of(links, "lo"), state="up")
        for name, address in ((MANAGEMENT, config.management), (UPLINK, config.uplink)):
            index = index_of(links, name)
            links.addr(
                "add",
                index=index,
                address=address.partition("/")[0],
                prefixlen=int(address.partition("/")[2]),
            )
            links.link("set", index=index, state="up")
        links.route("add", dst="default", gateway=config.gateway)


def _daemons() -> tuple[Daemon, ...]:
    return (
        Daemon(
            name="ovsdb-server",
            argv=("ovsdb-server", _DATABASE, f"--remote=p{_SOCKET}", "--pidfile"),
            probe=("ovs-vsctl", "--timeout=1", "--no-wait", "init"),
        ),
        Daemon(
            name="ovs-vswitchd",
            argv=("ovs-vswitchd", _SOCKET, "--pidfile"),
            probe=("ovs-appctl", "--timeout=1", "-t", "ovs-vswitchd", "version"),
            after=("ovsdb-server",),
        ),
        Daemon(name="virtlogd", argv=("virtlogd",)),
        Daemon(
            name="libvirtd",
            argv=("libvirtd",),
            probe=("virsh", "--connect", "qemu:///system", "version"),
            after=("virtlogd",),
        ),
    )


def _run(*argv: str) -> None:
    subprocess.run(argv, check=True)


if __name__ == "__main__":
    main()
