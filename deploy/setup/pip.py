"""Installation of packages with pip, under the user's own pip configuration.

An environment is created without pip. pip then comes from Python's `ensurepip`. Debian packages `ensurepip` separately;
where it is missing, pip comes from Debian's wheel package. That package is downloaded with private apt state, because
an ordinary user may download packages but not install them. Index, proxy and certificates come from pip's own files and
PIP_* variables; this module sets no index.
"""

import importlib.util
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from deploy.setup.commands import SetupFailed, run

_SYSTEM_CERTIFICATES: Final = Path("/etc/ssl/certs/ca-certificates.crt")
_CERTIFICATES: Final = "certificates.pem"
_ADVICE: Final = "pip uses its own configuration (pip.conf, PIP_*): check that the package index is reachable, then run ./dev again."
_QUIET: Final = {"PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_NO_INPUT": "1", "PIP_ROOT_USER_ACTION": "ignore"}


def put_into(environment: Path, log: Path) -> None:
    """Install pip into a virtual environment without pip. Raises `SetupFailed`."""
    if importlib.util.find_spec("ensurepip") is not None:
        with _temporary_folder(environment) as settings:
            run([_python(environment), "-m", "ensurepip", "--default-pip"], log, environment=settings)
        return
    if shutil.which("apt-get") is None:
        raise SetupFailed(
            "This Python has no ensurepip module. Install the system package that contains it (often python3-venv), "
            "then run ./dev again."
        )
    with tempfile.TemporaryDirectory(dir=environment) as folder:
        unpacked = _download_packages(["python3-pip-whl", "ca-certificates"], Path(folder), log)
        wheel = next(unpacked.glob("usr/share/python-wheels/pip-*.whl"))
        _write_certificates(unpacked, environment)
        # A wheel is a zip file that Python can execute, so pip installs itself.
        with _temporary_folder(environment) as settings:
            run(
                [_python(environment), f"{wheel}/pip", "install", "--no-index", "--no-deps", str(wheel)],
                log,
                environment={**_QUIET, **settings},
            )


def install(environment: Path, lock: Path, log: Path) -> None:
    """Install exactly the packages in `lock`, verifying the hash of each file. Raises `SetupFailed`."""
    certificates = environment / _CERTIFICATES
    settings = {"PIP_CERT": str(certificates)} if certificates.exists() else {}
    with _temporary_folder(environment) as temporary:
        run(
            [
                _python(environment), "-m", "pip", "install", "--require-hashes",
                # Source packages build with the locked setuptools: an isolated build would download an unverified one.
                "--no-build-isolation", "--use-pep517", "-r", str(lock),
            ],
            log,
            advice=_ADVICE,
            environment={**_QUIET, **settings, **temporary},
        )  # fmt: skip


@contextmanager
def _temporary_folder(environment: Path) -> Iterator[dict[str, str]]:
    """Return environment variables that keep pip's temporary files inside the environment.

    A killed pip leaves its temporary folders (about 40 MB) behind. The next run deletes an incomplete environment, and
    these folders with it.
    """
    with tempfile.TemporaryDirectory(dir=environment, prefix="tmp-") as folder:
        yield {"TMPDIR": folder}


def progress_of(lock: Path, log: Path) -> Callable[[], str]:
    """Return a function that describes the progress of pip, which installs the packages in the file `lock`.

    The function reads the lines that pip appends to `log` after this call.
    """
    packages = len(re.findall(r"^[A-Za-z0-9_.-]+(?:\[[^]]*\])?==", lock.read_text(), re.MULTILINE))
    start = log.stat().st_size if log.exists() else 0

    def progress() -> str:
        with log.open("rb") as file:
            file.seek(start)
            written = file.read()
        if b"\nInstalling collected packages" in written:
            return f"installing {packages} packages"
        return f"{min(written.count(b'Collecting '), packages)} of {packages} packages fetched"

    return progress


def _python(environment: Path) -> str:
    return str(environment / "bin" / "python")


def _download_packages(packages: list[str], folder: Path, log: Path) -> Path:
    """Download Debian packages without root into `folder`, unpack them, and return the folder with their files."""
    state, cache, unpacked = folder / "state", folder / "cache", folder / "unpacked"
    for needed in (state / "lists/partial", cache / "archives/partial", unpacked):
        needed.mkdir(parents=True)
    private = [
        "-o",
        f"Dir::State={state}",
        "-o",
        "Dir::State::status=/var/lib/dpkg/status",
        "-o",
        f"Dir::Cache={cache}",
    ]
    run(["apt-get", *private, "update"], log)
    # `apt-get download` writes to the working directory, which env(1) changes for this command only.
    run(["env", f"--chdir={folder}", "apt-get", *private, "download", *packages], log)
    for archive in folder.glob("*.deb"):
        run(["dpkg-deb", "-x", str(archive), str(unpacked)], log)
    return unpacked


def _write_certificates(unpacked: Path, environment: Path) -> None:
    """Write a certificate bundle for pip if the system has none.

    Debian's pip trusts the system's certificates only; the ca-certificates package contains them.
    """
    if _SYSTEM_CERTIFICATES.exists() or "PIP_CERT" in os.environ:
        return
    found = sorted((unpacked / "usr/share/ca-certificates").rglob("*.crt"))
    (environment / _CERTIFICATES).write_bytes(b"".join(path.read_bytes() for path in found))
