"""Installation of Debian packages for real nodes and for tests in a browser: as root, without starting the servers in
these packages and without installing a kernel.

The installation has these steps: find missing packages by one file for each package (about 20 stat calls, cheap enough
for every run), deny service starts, simulate the installation with apt and refuse it if it includes a kernel, install
the packages, and disable the start of their servers at boot. The product starts its own servers; those of the
distribution must never run on the user's host. If apt is killed, the mark file still contains the names of the packages
that were being installed, and the next run lets dpkg finish their installation.
"""

import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from deploy.setup.commands import CommandFailed, SetupFailed, run
from deploy.setup.service_denial import services_denied

# The key is the name of a package, and the value is a file that exists if the package is installed.
NODE_PACKAGES: Final[Mapping[str, str]] = {
    "openvswitch-switch": "/usr/sbin/ovs-vswitchd",
    "nftables": "/usr/sbin/nft",
    "iptables": "/usr/sbin/iptables-legacy-save",
    "dnsmasq-base": "/usr/sbin/dnsmasq",
    "libvirt-daemon-system": "/lib/systemd/system/libvirtd.service",
    "libvirt-daemon-driver-qemu": "/usr/lib/x86_64-linux-gnu/libvirt/connection-driver/libvirt_driver_qemu.so",
    "libvirt-clients": "/usr/bin/virsh",
    "qemu-system-x86": "/usr/bin/qemu-system-x86_64",
    "qemu-utils": "/usr/bin/qemu-img",
    "ovmf": "/usr/share/OVMF/OVMF_CODE_4M.fd",
    "postgresql": "/usr/lib/postgresql/15/bin/postgres",
    "redis-server": "/usr/bin/redis-server",
    "openssh-client": "/usr/bin/ssh",
    "conntrack": "/usr/sbin/conntrack",
    "iproute2": "/usr/bin/ip",
    # Needed to build libvirt-python:
    "gcc": "/usr/bin/gcc",
    "libc6-dev": "/usr/include/stdlib.h",
    "python3-dev": "/usr/include/python3.11/Python.h",
    "libvirt-dev": "/usr/include/libvirt/libvirt.h",
    "pkg-config": "/usr/bin/pkg-config",
    "python3-venv": "/usr/lib/python3.11/ensurepip/__init__.py",
}

# Needed by the verbs that open pages of the web console in a browser.
BROWSER_PACKAGES: Final[Mapping[str, str]] = {"chromium": "/usr/bin/chromium"}

# Packages in the lists above, or among their dependencies, that include a server started at boot.
_SERVERS: Final = {"libvirt-daemon-system", "openvswitch-switch", "postgresql-common", "redis-server"}
APT_MARK: Final = "apt-began"
_APT: Final = {"DEBIAN_FRONTEND": "noninteractive", "LC_ALL": "C.UTF-8"}
_OPTIONS: Final = (
    "-y",
    "--no-install-recommends",
    "-o",
    "DPkg::Lock::Timeout=120",
    "-o",
    "DPkg::Use-Pty=0",  # a pty has its own session, so dpkg would leave this process group
)
_ADVICE: Final = (
    "apt uses the package sources of this machine: check them and the network, then run ./dev again."
)
_KERNEL: Final = "linux-image"


def can_install() -> bool:
    """Return whether this process is root on Debian 12, where the set-up can install Debian packages."""
    return os.geteuid() == 0 and shutil.which("apt-get") is not None and _is_debian_12()


def _is_debian_12() -> bool:
    try:
        release = Path("/etc/os-release").read_text().splitlines()
    except FileNotFoundError:
        return False
    return "ID=debian" in release and 'VERSION_ID="12"' in release


def missing_packages(*, with_browser: bool = False) -> list[str]:
    """Return the names of the packages in `NODE_PACKAGES` that are not installed; if `with_browser` is set, return also
    the names of those in `BROWSER_PACKAGES`. A package counts as installed if the file in the mapping exists.
    """
    needed = {**NODE_PACKAGES, **BROWSER_PACKAGES} if with_browser else NODE_PACKAGES
    return [package for package, witness in needed.items() if not Path(witness).exists()]


def was_interrupted(folder: Path) -> bool:
    """Return whether an earlier call of `install` was interrupted: then the file that marks an unfinished installation
    is still in `folder`.
    """
    return (folder / APT_MARK).exists()


def install(packages: Sequence[str], folder: Path, log: Path) -> None:
    """Install packages, and finish an earlier installation that was interrupted. Raises `SetupFailed`.

    `folder` contains the mark file while an installation runs. The output of all commands is appended to `log`.
    """
    mark = folder / APT_MARK
    with services_denied():
        installing = mark.read_text().split() if mark.exists() else []
        if installing:
            run(["dpkg", "--configure", "-a"], log, advice=_ADVICE, environment=_APT)
            run(["apt-get", "install", "-f", *_OPTIONS], log, advice=_ADVICE, environment=_APT)
        installing += _plan(packages, log)
        mark.write_text("\n".join(installing))
        _install(packages, log)
        _disable_at_boot(installing, log)
        mark.unlink()


def _plan(packages: Sequence[str], log: Path) -> list[str]:
    """Return the names of all packages that apt would install for `packages`, including their dependencies. Raises
    `SetupFailed` if a kernel is among them.
    """
    simulate = ["apt-get", "-s", "install", *_OPTIONS, *packages]
    try:
        simulation = run(simulate, log, advice=_ADVICE, environment=_APT)
    except CommandFailed:
        # The most likely cause is that the package lists are missing or out of date.
        run(["apt-get", "update"], log, advice=_ADVICE, environment=_APT)
        simulation = run(simulate, log, advice=_ADVICE, environment=_APT)
    installing = [line.split()[1] for line in simulation.splitlines() if line.startswith("Inst ")]
    kernels = [package for package in installing if package.startswith(_KERNEL)]
    if kernels:
        raise SetupFailed(
            f"apt would install a kernel ({', '.join(kernels)}), which would change what this host boots. "
            "Nothing was installed. Run `apt-get -s install` to see the pending changes, resolve them, then run ./dev again."
        )
    return installing


def _install(packages: Sequence[str], log: Path) -> None:
    command = ["apt-get", "install", *_OPTIONS, *packages]
    try:
        run(command, log, advice=_ADVICE, environment=_APT)
    except CommandFailed as failed:
        if "Unable to fetch" not in failed.output and "404" not in failed.output:
            raise
        # The mirror has replaced the versions that the package lists name.
        run(["apt-get", "update"], log, advice=_ADVICE, environment=_APT)
        _plan(packages, log)
        run(command, log, advice=_ADVICE, environment=_APT)


def _disable_at_boot(installed: Sequence[str], log: Path) -> None:
    """Disable the start at boot of the servers among `installed`, the packages that this set-up has installed. Servers
    that were installed before keep their configuration.
    """
    servers = sorted(_SERVERS & set(installed))
    if shutil.which("systemctl") is None or not servers:
        return
    files = run(["dpkg-query", "-L", *servers], log, advice=_ADVICE, environment=_APT).split()
    names = {Path(name).name for name in files if "/systemd/system/" in name}
    units = sorted(name for name in names if name.endswith((".service", ".socket")) and "@" not in name)
    run(["systemctl", "--no-reload", "disable", *units], log, advice=_ADVICE, environment=_APT)
