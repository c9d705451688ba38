"""Debian packages fetched and unpacked into a folder, never installed.

Installing a kernel would change what the host boots. `apt-get download` checks signatures as an installation
would; it needs no root, since its state may live anywhere. The host's own package lists are used when they
answer, private ones are fetched when they do not (a fresh machine, an outdated mirror state). A crash leaves
files in `folder` only, and the caller throws that away.
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
    """apt could not resolve or fetch a package; `output` is what it said."""

    def __init__(self, names: tuple[str, ...], output: str) -> None:
        super().__init__(f"apt could not fetch {', '.join(names)}: {output.strip()}")
        self.names, self.output = names, output


class Apt:
    """apt with all it writes below `folder`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._options = _private_cache(folder)

    def refresh(self) -> None:
        """Fetch package lists of our own, leaving the host's as they are."""
        state = self._folder / "state"
        (state / "lists" / "partial").mkdir(parents=True, exist_ok=True)
        self._options = (*self._options, "-o", f"Dir::State::lists={state / 'lists'}")
        self._apt("apt-get", "update", "-q", about=("package lists",))

    def direct_dependency(self, package: str, prefix: str) -> str:
        """The one package named `prefix`... that `package` depends on (a metapackage's versioned target)."""
        for line in self._apt("apt-cache", "depends", package, about=(package,)).splitlines():
            relation, _, name = line.strip().partition(": ")
            if relation == "Depends" and name.startswith(prefix):
                return name
        raise PackagesUnavailable((package,), f"it depends on no {prefix}...")

    def with_dependencies(self, package: str) -> tuple[str, ...]:
        listing = self._apt("apt-cache", "depends", "--recurse", *_NO_OPTIONAL, package, about=(package,))
        return tuple(line for line in listing.splitlines() if line[:1].isalnum())

    def unpack(self, names: tuple[str, ...], root: Path) -> None:
        """Fetch `names` at the versions apt would install, and unpack them all into `root`."""
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
        # apt drops to a user that may not write below a root-only folder.
        options += ["-o", "APT::Sandbox::User=root"]
    return tuple(options)
