"""Debian's packages for real nodes, installed as root without a server started or a kernel installed.

Order: see what is missing by a witness file each (15 stats, so that every run can afford it), ask apt what it would
do, refuse a kernel, deny service starts, install, and disable at boot the servers that came with the packages: the
product starts its own, and the distribution's must not appear on the user's host, now or later.
A crash inside apt leaves the mark with the names of what was arriving; the next run lets dpkg finish what it began.
"""

import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from deploy.setup.commands import CommandFailed, SetupFailed, run
from deploy.setup.service_denial import services_denied

# package -> a file that is there when the package is
NODE_PACKAGES: Final[Mapping[str, str]] = {
    "openvswitch-switch": "/usr/sbin/ovs-vswitchd",
    "nftables": "/usr/sbin/nft",
    "iptables": "/usr/sbin/iptables-legacy-save",
    "dnsmasq-base": "/usr/sbin/dnsmasq",
    "libvirt-daemon-system": "/lib/systemd/system/libvirtd.service",
    "libvirt-daemon-driver-qemu": "/usr/lib/x86_64-linux-gnu/libvirt/connection-driver/libvirt_driver_qemu.so",
    "libvirt-clients": "/usr/bin/virsh",
    "qemu-system-x86": "/usr/bin/qemu-system-x86_64",
    "postgresql": "/usr/lib/postgresql/15/bin/postgres",
    "redis-server": "/usr/bin/redis-server",
    "openssh-client": "/usr/bin/ssh",
    "conntrack": "/usr/sbin/conntrack",
    "iproute2": "/usr/bin/ip",
    # to build libvirt-python
    "gcc": "/usr/bin/gcc",
    "libc6-dev": "/usr/include/stdlib.h",
    "python3-dev": "/usr/include/python3.11/Python.h",
    "libvirt-dev": "/usr/include/libvirt/libvirt.h",
    "pkg-config": "/usr/bin/pkg-config",
    "python3-venv": "/usr/lib/python3.11/ensurepip/__init__.py",
}

# Those of the above, and of what they bring along, that come with a server started at boot.
_SERVERS: Final = {"libvirt-daemon-system", "openvswitch-switch", "postgresql-common", "redis-server"}
APT_MARK: Final = "apt-began"
_APT: Final = {"DEBIAN_FRONTEND": "noninteractive", "LC_ALL": "C.UTF-8"}
_OPTIONS: Final = (
    "-y",
    "--no-install-recommends",
    "-o",
    "DPkg::Lock::Timeout=120",
    "-o",
    "DPkg::Use-Pty=0",  # a pty is a session of its own, and dpkg would escape our process group
)
_ADVICE: Final = "apt follows this machine's own sources: check them and the network, then run ./dev again."
_KERNEL: Final = "linux-image"


def can_install() -> bool:
    """Whether this is root on Debian 12, where a machine is set up with Debian's own packages."""
    return os.geteuid() == 0 and shutil.which("apt-get") is not None and _is_debian_12()


def _is_debian_12() -> bool:
    try:
        release = Path("/etc/os-release").read_text().splitlines()
    except FileNotFoundError:
        return False
    return "ID=debian" in release and 'VERSION_ID="12"' in release


def missing_packages() -> list[str]:
    """The packages of NODE_PACKAGES that this machine lacks."""
    return [package for package, witness in NODE_PACKAGES.items() if not Path(witness).exists()]


def was_interrupted(folder: Path) -> bool:
    """Whether an installation of ours began and did not end."""
    return (folder / APT_MARK).exists()


def install(packages: Sequence[str], folder: Path, log: Path) -> None:
    """Installs `packages`; `folder` keeps the mark of an installation under way. Raises SetupFailed."""
    mark = folder / APT_MARK
    with services_denied():
        arriving = mark.read_text().split() if mark.exists() else []
        if arriving:
            run(["dpkg", "--configure", "-a"], log, advice=_ADVICE, environment=_APT)
            run(["apt-get", "install", "-f", *_OPTIONS], log, advice=_ADVICE, environment=_APT)
        arriving += _plan(packages, log)
        mark.write_text("\n".join(arriving))
        _install(packages, log)
        _disable_at_boot(arriving, log)
        mark.unlink()


def _plan(packages: Sequence[str], log: Path) -> list[str]:
    """What apt would install for `packages`. Raises SetupFailed when a kernel is among it."""
    simulate = ["apt-get", "-s", "install", *_OPTIONS, *packages]
    try:
        simulation = run(simulate, log, advice=_ADVICE, environment=_APT)
    except CommandFailed:
        # Most likely no package lists yet, or old ones.
        run(["apt-get", "update"], log, advice=_ADVICE, environment=_APT)
        simulation = run(simulate, log, advice=_ADVICE, environment=_APT)
    arriving = [line.split()[1] for line in simulation.splitlines() if line.startswith("Inst ")]
    kernels = [package for package in arriving if package.startswith(_KERNEL)]
    if kernels:
        raise SetupFailed(
            f"apt would install a kernel ({', '.join(kernels)}), which would change what this host boots. "
            "Nothing was installed. `apt-get -s install` shows what is pending; settle that, then try again."
        )
    return arriving


def _install(packages: Sequence[str], log: Path) -> None:
    command = ["apt-get", "install", *_OPTIONS, *packages]
    try:
        run(command, log, advice=_ADVICE, environment=_APT)
    except CommandFailed as failed:
        if "Unable to fetch" not in failed.output and "404" not in failed.output:
            raise
        # The lists named versions that the mirror has replaced since.
        run(["apt-get", "update"], log, advice=_ADVICE, environment=_APT)
        _plan(packages, log)
        run(command, log, advice=_ADVICE, environment=_APT)


def _disable_at_boot(arrived: Sequence[str], log: Path) -> None:
    """Only servers that we brought: one that was here before stays as its owner wants it."""
    servers = sorted(_SERVERS & set(arrived))
    if shutil.which("systemctl") is None or not servers:
        return
    files = run(["dpkg-query", "-L", *servers], log, advice=_ADVICE, environment=_APT).split()
    names = {Path(name).name for name in files if "/systemd/system/" in name}
    units = sorted(name for name in names if name.endswith((".service", ".socket")) and "@" not in name)
    run(["systemctl", "--no-reload", "disable", *units], log, advice=_ADVICE, environment=_APT)
