"""A minimal Debian 12: a folder created by debootstrap, entered with its own namespaces.

A command runs as a child of the machine's first process. The machine's `/` is the real root (pivot_root, so that mounts
behave as on a host); it has its own processes, and shares devices and network with this machine. When the command ends,
so do its namespaces, with every process and mount in them. The test removes the folder. The package sources are
configured on this machine, passed on at run time and never stored in the repository.
"""

import os
import re
import shutil
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

PERSON: Final = "person"
_PACKAGES: Final = "bash,git,python3,ca-certificates"
_APT: Final = Path("/etc/apt")
_CERTIFICATES: Final = Path("/etc/ssl/certs/ca-certificates.crt")
_PASSED_ON: Final = re.compile(r"PIP_\w+|(https?|no)_proxy|SSL_CERT_FILE", re.IGNORECASE)

_NAMESPACES: Final = ("unshare", "--mount", "--pid", "--fork", "--kill-child")
_ENTER: Final = r"""
set -e
cd "$1"; shift
mount --bind . . && cd "$PWD"
mount --rbind /dev dev
mount --rbind /sys sys
mount -t tmpfs tmpfs run && mkdir -p run/lock
mount -t proc proc proc
/usr/sbin/pivot_root . mnt
umount -l /mnt
cd "$HOME/sliceplane" 2>/dev/null || cd /
code=0; "$@" || code=$?
# List processes that are still running: services that a package started, or parts of the product.
for process in /proc/[0-9]*; do
    if [ "$process" != /proc/1 ] && read -r name < "$process/comm"; then echo "$name"; fi
done > /left-running 2>/dev/null || true
exit $code
"""


@dataclass(frozen=True)
class Ended:
    """Result of a command in the minimal Debian. `left_running` contains the names of processes that outlived it."""

    code: int
    output: str
    seconds: float
    left_running: list[str]


@dataclass(frozen=True)
class CleanMachine:
    """Minimal Debian in the folder `root`, in which commands run as `user`: root or the ordinary user `PERSON`."""

    root: Path
    user: str

    @property
    def home(self) -> str:
        return "/root" if self.user == "root" else f"/home/{self.user}"

    def run(self, *command: str, limit_seconds: float = 600) -> Ended:
        """Run a command in the repository checkout of the machine, or in `/` if there is no checkout yet."""
        began = time.monotonic()
        ended = subprocess.run(
            [*_NAMESPACES, "bash", "-c", _ENTER, "enter", self.root, *self._as_user(), *command],
            env=self._environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            check=False,
            text=True,
            timeout=limit_seconds,
        )
        left = self.root / "left-running"
        lines = left.read_text().splitlines() if left.exists() else []
        return Ended(ended.returncode, ended.stdout, time.monotonic() - began, lines)

    def kernels(self) -> list[str]:
        """Return the names of the kernel packages that are installed in the minimal Debian."""
        return [path.name for path in (self.root / "var/lib/dpkg/info").glob("linux-image*.list")]

    def put(self, source: Path, files: tuple[Path, ...]) -> None:
        """Copy `files` from the repository `source` into the checkout inside the minimal Debian."""
        checkout = self.root / self.home.lstrip("/") / "sliceplane"
        for file in files:
            target = checkout / file.relative_to(source)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(file, target)
        if self.user != "root":
            _run("chroot", str(self.root), "chown", "-R", f"{self.user}:{self.user}", self.home)

    def _as_user(self) -> list[str]:
        if self.user == "root":
            return []
        return ["setpriv", f"--reuid={self.user}", f"--regid={self.user}", "--init-groups", "--inh-caps=-all"]

    def _environment(self) -> dict[str, str]:
        programs = "/usr/local/bin:/usr/bin:/bin"
        if self.user == "root":
            programs = f"/usr/local/sbin:/usr/sbin:/sbin:{programs}"
        passed_on = {name: value for name, value in os.environ.items() if _PASSED_ON.fullmatch(name)}
        return {**passed_on, "PATH": programs, "HOME": self.home, "LANG": "C.UTF-8", "USER": self.user}


def debootstrap(root: Path) -> None:
    """Create the minimal Debian at `root`, with the package sources of this machine."""
    mirror = _mirror()
    root.chmod(0o755)  # it becomes the `/` of every user on the machine
    _run("debootstrap", "--variant=minbase", f"--include={_PACKAGES}", "bookworm", str(root), *mirror)
    (root / "etc/apt/sources.list").unlink(missing_ok=True)
    for source in _debian_sources():
        shutil.copy2(source, root / source.relative_to("/"))
    for setting in (_APT / "apt.conf.d").glob("*"):
        if "proxy" in setting.read_text().lower():
            shutil.copy2(setting, root / setting.relative_to("/"))
    for name in ("/etc/resolv.conf", "/etc/hosts", str(_CERTIFICATES)):
        shutil.copy(name, root / name.lstrip("/"))
    _run("chroot", str(root), "useradd", "--create-home", "--shell", "/bin/bash", PERSON)
    _copy_pip_configuration(root)


def _debian_sources() -> list[Path]:
    lists = [_APT / "sources.list", *(_APT / "sources.list.d").glob("*")]
    return [path for path in lists if path.is_file() and re.search(r"\bbookworm(-security)?\s", path.read_text())
            and "/debian" in path.read_text()]  # fmt: skip


def _mirror() -> list[str]:
    found = [re.search(r"\bhttps?://\S+/debian/?(?=\s)", path.read_text()) for path in _debian_sources()]
    return [match[0] for match in found if match][:1]


def _copy_pip_configuration(root: Path) -> None:
    config = Path(os.environ.get("XDG_CONFIG_HOME", Path.home() / ".config")) / "pip/pip.conf"
    for source, target in ((Path("/etc/pip.conf"), "etc/pip.conf"), (config, "etc/xdg/pip/pip.conf")):
        if source.exists():
            (root / target).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, root / target)


def _run(*command: str) -> None:
    ended = subprocess.run(command, check=False, capture_output=True, text=True)
    assert ended.returncode == 0, f"{command}: {ended.stdout[-2000:]}{ended.stderr[-2000:]}"
