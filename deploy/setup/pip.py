"""pip, from wherever this machine has it, under the user's own configuration.

An environment is made without pip; pip then comes from Python's `ensurepip`, or, where Debian split that off, from
Debian's wheel, downloaded with a private apt state, since an ordinary user can download packages and not
install them. Indexes, proxies and certificates are the user's: pip reads its own files and PIP_*; we name none.
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
_ADVICE: Final = "pip follows its own configuration (pip.conf, PIP_*): check that its index can be reached, then run ./dev again."
_QUIET: Final = {"PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_NO_INPUT": "1", "PIP_ROOT_USER_ACTION": "ignore"}


def put_into(environment: Path, log: Path) -> None:
    """Puts pip into a virtual environment that has none. Raises SetupFailed."""
    if importlib.util.find_spec("ensurepip") is not None:
        with _temporary_folder(environment) as ours:
            run([_python(environment), "-m", "ensurepip", "--default-pip"], log, environment=ours)
        return
    if shutil.which("apt-get") is None:
        raise SetupFailed(
            "This Python has no ensurepip. Install your system's package for it (often python3-venv)."
        )
    with tempfile.TemporaryDirectory(dir=environment) as folder:
        unpacked = _downloaded(["python3-pip-whl", "ca-certificates"], Path(folder), log)
        wheel = next(unpacked.glob("usr/share/python-wheels/pip-*.whl"))
        _write_certificates(unpacked, environment)
        # A wheel is a zip that Python can run from: pip installs itself.
        with _temporary_folder(environment) as ours:
            run(
                [_python(environment), f"{wheel}/pip", "install", "--no-index", "--no-deps", str(wheel)],
                log,
                environment={**_QUIET, **ours},
            )


def install(environment: Path, lock: Path, log: Path) -> None:
    """Installs exactly what `lock` names, each file checked against its hash. Raises SetupFailed."""
    certificates = environment / _CERTIFICATES
    ours = {"PIP_CERT": str(certificates)} if certificates.exists() else {}
    with _temporary_folder(environment) as temporary:
        run(
            [
                _python(environment), "-m", "pip", "install", "--require-hashes",
                # Source packages build with the locked setuptools: an isolated build would fetch one unchecked.
                "--no-build-isolation", "--use-pep517", "-r", str(lock),
            ],
            log,
            advice=_ADVICE,
            environment={**_QUIET, **ours, **temporary},
        )  # fmt: skip


@contextmanager
def _temporary_folder(environment: Path) -> Iterator[dict[str, str]]:
    """Settings that keep pip's temporary files inside the environment.

    pip leaves its folders (about 40 MB) behind when it is killed. An interrupted environment is deleted at the next
    start, and these files with it.
    """
    with tempfile.TemporaryDirectory(dir=environment, prefix="tmp-") as folder:
        yield {"TMPDIR": folder}


def progress_of(lock: Path, log: Path) -> Callable[[], str]:
    """A function that returns how far an `install` of `lock` has come, read from what pip has logged since now."""
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


def _downloaded(packages: list[str], folder: Path, log: Path) -> Path:
    """Downloads Debian packages as any user may, unpacks them below `folder`, and returns where."""
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
    # `download` writes to the current folder, and only env(1) changes that for one command.
    run(["env", f"--chdir={folder}", "apt-get", *private, "download", *packages], log)
    for archive in folder.glob("*.deb"):
        run(["dpkg-deb", "-x", str(archive), str(unpacked)], log)
    return unpacked


def _write_certificates(unpacked: Path, environment: Path) -> None:
    """Debian's pip trusts the system's certificates only; where there are none, its own package has them."""
    if _SYSTEM_CERTIFICATES.exists() or "PIP_CERT" in os.environ:
        return
    found = sorted((unpacked / "usr/share/ca-certificates").rglob("*.crt"))
    (environment / _CERTIFICATES).write_bytes(b"".join(path.read_bytes() for path in found))
