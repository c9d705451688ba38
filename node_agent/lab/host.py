"""The first process of a lab node: it mounts the usual paths of the daemons and then supervises the daemons.

The lab starts it by `unshare --net --mount --uts --pid --fork --kill-child --mount-proc python -m node_agent.lab.host
CONFIG`. It prepares mounts, libvirt's configuration, the database of Open vSwitch and the daemons, in this order. It
configures addresses when the lab has attached the network cards. Files that a reboot of a real host would lose are on a
tmpfs (including the database of Open vSwitch, which the agent rebuilds); files that survive a reboot are in the node's
folder. After a crash only that folder remains.
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
from node_agent.lab.supervisor import Supervisor, reserve_stdout

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
"""Folders on which a lab node mounts an empty tmpfs at every start, so that the node does not share them with the
machine."""
_DATABASE: Final = "/etc/openvswitch/conf.db"
_SOCKET: Final = "unix:/run/openvswitch/db.sock"

# QEMU runs as root without cgroups, security labels and mount namespaces, because the lab node is already isolated.
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
    """Configuration of a lab node.

    `management` and `uplink` are addresses with prefix lengths; `gateway` is the next hop of the default route.
    """

    name: str
    folder: str
    management: str
    uplink: str
    gateway: str


def main() -> None:
    event_output = reserve_stdout()
    config = msgspec.json.decode(Path(sys.argv[1]).read_bytes(), type=HostConfig)
    folder = Path(config.folder)
    lock = _lock_folder(folder)
    log.info("lab_host_starting", node=config.name, lock_descriptor=lock)
    _mount(folder)
    _set_host_name(config.name, folder)
    _configure_libvirt()
    subprocess.run(
        ["ovsdb-tool", "create", _DATABASE, "/usr/share/openvswitch/vswitch.ovsschema"], check=True
    )
    Path("/proc/sys/net/ipv4/ip_forward").write_text("1")
    Supervisor(event_output, folder, _daemons(), lambda: _configure_links(config)).run()


def _lock_folder(folder: Path) -> int:
    """Lock the lab node's folder until this process exits. Wait for a previous process of the node that holds the lock
    and is still exiting.
    """
    descriptor = os.open(folder / "host.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    return descriptor


def _mount(folder: Path) -> None:
    for path in VOLATILE:
        Path(path).mkdir(parents=True, exist_ok=True)
        _run("mount", "-t", "tmpfs", "-o", "mode=755", "tmpfs", path)
    for path in ("/run/lock", "/run/openvswitch", "/run/libvirt", "/etc/libvirt/qemu"):
        Path(path).mkdir()
    # The sysfs of the machine would show the network cards of the machine.
    _run("mount", "-t", "sysfs", "sysfs", "/sys")
    bind_mounts = {
        folder / "log" / "openvswitch": "/var/log/openvswitch",
        folder / "log" / "libvirt": "/var/log/libvirt",
        # libvirt's first probe of QEMU takes seconds; its result is valid until QEMU or the kernel changes.
        folder / "cache": "/var/cache/libvirt",
    }
    for source, path in bind_mounts.items():
        source.mkdir(parents=True, exist_ok=True)
        Path(path).mkdir(parents=True, exist_ok=True)
        _run("mount", "--bind", str(source), path)


def _set_host_name(name: str, folder: Path) -> None:
    """Set the host name of a lab node, and make it resolvable without a DNS server.

    The machine's DNS server is not reachable from the node. libvirt resolves the host name at the start of every
    domain, and each attempt would time out after ten seconds.
    """
    socket.sethostname(name)
    texts = {"hosts": f"127.0.0.1 localhost\n127.0.1.1 {name}\n", "resolv.conf": ""}
    for file, text in texts.items():
        (folder / file).write_text(text)
        target = Path("/etc", file).resolve()
        if target.is_relative_to("/run"):
            # The file is a link into the machine's /run, which is hidden in this node.
            target.parent.mkdir(parents=True, exist_ok=True)
            target.touch()
        if target.exists():
            _run("mount", "--bind", str(folder / file), str(target))


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
