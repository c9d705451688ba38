"""URL, API key and CA of the control plane. This is the only module of the client that reads the environment.

URL and key are taken from the option, else from the environment, else from the configuration file. The key in a file is
sent only to the URL in that file, so that a mistyped --url never receives the secret of another installation. The CA in
a file also applies only to its URL; the CA file (PEM) of --ca or SLICEPLANE_CA applies to any URL.
"""

import os
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from control_plane.cli.failures import NoAccess, WrongUsage


@dataclass(frozen=True, slots=True)
class Access:
    """Access to a control plane. `ca` (PEM) verifies its certificate; None: the system's CAs. `warnings` are shown to
    the user. `identity` and `namespaces` are used by `sliceplane ssh` (see `control_plane.cli.ssh`).
    """

    url: str
    api_key: str
    ca: str | None = None
    warnings: tuple[str, ...] = ()
    identity: Path | None = None
    namespaces: Mapping[str, Mapping[str, str]] = field(default_factory=dict)


class _ClientFile(msgspec.Struct, frozen=True):
    url: str
    api_key: str
    ca: str | None = None
    identity: str | None = None
    namespaces: dict[str, dict[str, str]] = {}


def config_files(environ: Mapping[str, str], *, root: bool) -> tuple[Path, ...]:
    """Return the candidate configuration files, of which the first existing one is used.

    These are the file that SLICEPLANE_CONFIG names, else `client.json` in the state folders of `./dev up` and
    `./dev up --simulated`.
    """
    if named := environ.get("SLICEPLANE_CONFIG"):
        return (Path(named),)
    state = Path("/var/lib")
    if not root:
        home = Path(environ.get("HOME", "~")).expanduser()
        state = Path(environ.get("XDG_STATE_HOME") or home / ".local/state")
    return tuple(state / name / "client.json" for name in ("sliceplane", "sliceplane-simulated"))


def first_existing(files: Sequence[Path]) -> Path:
    """Return the first existing file; if none exists, the first file, to be named in the error message."""
    return next((file for file in files if os.access(file, os.F_OK)), files[0])


def find_access(url: str | None, api_key: str | None, ca: Path | None = None) -> Access:
    """Find the URL, API key and CA to use. Raises `WrongUsage` if the URL is missing, `NoAccess` if the key is."""
    environ = os.environ
    url = _checked(url or environ.get("SLICEPLANE_URL") or None)
    api_key = api_key or environ.get("SLICEPLANE_API_KEY")
    if ca is None and (named := environ.get("SLICEPLANE_CA")):
        ca = Path(named)
    given = None if ca is None else _read_ca(ca)
    path = first_existing(config_files(environ, root=os.geteuid() == 0))
    if url and api_key:
        return _about(_file_about(url, path), url, api_key, given)
    return _completed(url, api_key, given, path)


def _checked(url: str | None) -> str | None:
    if url is not None and not url.startswith(("http://", "https://")):
        raise WrongUsage(
            f"{url} is not a URL of a control plane", "use a URL that starts with http:// or https://"
        )
    return url


def _read_ca(path: Path) -> str:
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "the file is not a text file"
        raise WrongUsage(
            f"cannot read the CA file {path}: {reason}",
            "set --ca or SLICEPLANE_CA to a PEM file",
        ) from error


def _file_about(url: str, path: Path) -> _ClientFile | None:
    """Return the contents of the client configuration file if it is for this URL.

    A file for another URL, or an unreadable file, is not an error.
    """
    try:
        found = _read(path)
    except WrongUsage:
        return None
    return found if found is not None and url.rstrip("/") == found.url.rstrip("/") else None


def _about(
    file: _ClientFile | None, url: str, api_key: str, ca: str | None, warnings: tuple[str, ...] = ()
) -> Access:
    """Return the access to the URL, with the CA and the SSH settings of the configuration file, if there is one."""
    if file is None:
        return Access(url.rstrip("/"), api_key, ca)
    identity = None if file.identity is None else Path(file.identity)
    return Access(url.rstrip("/"), api_key, ca or file.ca, warnings, identity, file.namespaces)


def _completed(url: str | None, api_key: str | None, ca: str | None, path: Path) -> Access:
    found = _read(path)
    if url is None and found is None:
        raise WrongUsage(
            f"no control plane is configured: the file {path} does not exist",
            "start a control plane on this machine: ./dev up",
            "specify another control plane instead: --url and --api-key, or SLICEPLANE_URL and SLICEPLANE_API_KEY",
        )
    if found is not None and url in (None, found.url, found.url.rstrip("/")):
        return _about(found, found.url, api_key or found.api_key, ca, _open_to_others(path))
    if url is None or api_key is None:
        raise NoAccess(
            f"no API key is configured for {url}",
            "specify an API key: --api-key or SLICEPLANE_API_KEY",
        )
    return Access(url.rstrip("/"), api_key, ca)


def _read(path: Path) -> _ClientFile | None:
    try:
        return msgspec.json.decode(path.read_bytes(), type=_ClientFile)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise WrongUsage(
            f"cannot read {path}: {error.strerror}",
            "set SLICEPLANE_CONFIG to another file",
        ) from error
    except msgspec.DecodeError as error:
        raise WrongUsage(
            f"{path} is not a valid configuration file: {error}",
            'expected content: {"url": "...", "api_key": "..."}',
        ) from error


def _open_to_others(path: Path) -> tuple[str, ...]:
    if stat.S_IMODE(path.stat().st_mode) & 0o077:
        return (f"{path} contains an API key and others can read it; run chmod 600 {path}",)
    return ()
