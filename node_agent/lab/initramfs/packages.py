"""Download Debian packages and unpack them into a folder, without installing them.

Installing a kernel would change the kernel that the host boots. `apt-get download` verifies signatures like an
installation, and needs no root, because its state may be stored anywhere. The package lists of the host are used first.
If these lists cannot resolve a package (on a fresh machine, or because they are outdated), separate lists are
downloaded. A crash leaves files only in `folder`, which the caller deletes.
"""

import os
import subprocess
from pathlib import Path
from typing import Final

_NO_OPTIONAL: Final = tuple(
    f"--no-{relation}"
    for relation in ("recommends", "suggests", "conflicts", "breaks", "replaces", "enhances")
)
FETCH_SECONDS: Final = 300


class PackagesUnavailable(Exception):
    """apt could not resolve or download a package; `output` is the error output of apt."""

    def __init__(self, names: tuple[str, ...], output: str) -> None:
        super().__init__(f"apt could not download {', '.join(names)}: {output.strip()}")
        self.names, self.output = names, output


class Apt:
    """An apt client that writes all of its files below `folder`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._options = _private_cache(folder)

    def refresh(self) -> None:
        """Download separate package lists, without changing the host's package lists."""
        state = self._folder / "state"
        (state / "lists" / "partial").mkdir(parents=True, exist_ok=True)
        self._options = (*self._options, "-o", f"Dir::State::lists={state / 'lists'}")
        self._apt("apt-get", "update", "-q", about=("package lists",))

    def direct_dependency(self, package: str, prefix: str) -> str:
        """Return the direct dependency of `package` that has this name prefix, for example a metapackage's target.

        Raises `PackagesUnavailable`.
        """
        for line in self._apt("apt-cache", "depends", package, about=(package,)).splitlines():
            relation, _, name = line.strip().partition(": ")
            if relation == "Depends" and name.startswith(prefix):
                return name
        raise PackagesUnavailable((package,), f"the package has no dependency with the prefix {prefix}")

    def with_dependencies(self, package: str) -> tuple[str, ...]:
        """Return the name of a package and the names of its direct and indirect dependencies."""
        listing = self._apt("apt-cache", "depends", "--recurse", *_NO_OPTIONAL, package, about=(package,))
        return tuple(line for line in listing.splitlines() if line[:1].isalnum())

    def unpack(self, names: tuple[str, ...], root: Path) -> None:
        """Download packages in the versions that apt would install, and unpack them into `root`."""
        archives = self._folder / "archives"
        archives.mkdir(parents=True, exist_ok=True)
        self._apt("apt-get", "download", "-q", *names, about=names, cwd=archives)
        root.mkdir(parents=True, exist_ok=True)
        for archive in sorted(archives.glob("*.deb")):
            subprocess.run(["dpkg-deb", "-x", str(archive), str(root)], check=True)

    def _apt(self, program: str, *arguments: str, about: tuple[str, ...], cwd: Path | None = None) -> str:
        try:
            done = subprocess.run(
                [program, *self._options, *arguments],
                check=False,
                cwd=cwd,
                env={**os.environ, "LC_ALL": "C"},
                capture_output=True,
                text=True,
                timeout=FETCH_SECONDS,
            )
        except (FileNotFoundError, subprocess.TimeoutExpired) as error:
            raise PackagesUnavailable(about, str(error)) from error
        if done.returncode:
            raise PackagesUnavailable(about, done.stderr)
        return done.stdout


def _private_cache(folder: Path) -> tuple[str, ...]:
    cache = folder / "cache"
    (cache / "archives" / "partial").mkdir(parents=True, exist_ok=True)
    options = ["-o", f"Dir::Cache={cache}"]
    if os.geteuid() == 0:
        # By default apt switches to a user that cannot write below a folder of root.
        options += ["-o", "APT::Sandbox::User=root"]
    return tuple(options)
