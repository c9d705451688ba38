"""URL, API key, CA and project of a command. This is the only module of the client that reads the environment.

URL and key are taken from the first source that has one: the options, the environment, the context that --context
names, the file that SLICEPLANE_CONFIG names, the current context, and the file that `./dev up` wrote. The key in a file
is sent only to the URL beside it, so that a mistyped --url never receives the secret of another installation. The CA in
a file also applies only to its URL; the CA file (PEM) of --ca or SLICEPLANE_CA applies to any URL.
"""

import contextlib
import os
import shlex
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

import msgspec

from control_plane.cli.contexts import Context, contexts_file, read_contexts
from control_plane.cli.failures import NoAccess, WrongUsage

CA_VARIABLE: Final = '"$SLICEPLANE_CA"'
"""Shell word for a CA that is stored inside a configuration file, for which curl needs a file of its own."""


@dataclass(frozen=True, slots=True)
class Given:
    """The options before the command: `sliceplane --url ... --api-key ... COMMAND`."""

    url: str | None = None
    api_key: str | None = None
    ca: Path | None = None
    project: str | None = None
    context: str | None = None
    as_curl: bool = False


@dataclass(frozen=True, slots=True)
class Access:
    """Access to a control plane. `ca` (PEM) verifies its certificate; None: the system's CAs. `ca_word` is the shell
    word that names the file of the CA. `project` is the project for commands that act on one project.

    `warnings` are shown to the user. `identity` and `namespaces` are used by `sliceplane ssh` (see
    `control_plane.cli.ssh`).
    """

    url: str
    api_key: str
    ca: str | None = None
    ca_word: str | None = None
    project: str | None = None
    warnings: tuple[str, ...] = ()
    identity: Path | None = None
    namespaces: Mapping[str, Mapping[str, str]] = field(default_factory=dict)


class _ClientFile(msgspec.Struct, frozen=True):
    """Contents of the file that `./dev up` writes."""

    url: str
    api_key: str
    ca: str | None = None
    identity: str | None = None
    namespaces: dict[str, dict[str, str]] = {}


@dataclass(frozen=True, slots=True)
class _Source:
    """A control plane URL that is stored in a file, and the values that are stored with it. `login` advises how to
    store an API key or session there.
    """

    path: Path
    url: str
    api_key: str | None
    ca: str | None = None
    project: str | None = None
    login: str = ""

    def is_for(self, url: str | None) -> bool:
        return url is None or url.rstrip("/") == self.url.rstrip("/")


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


def own_contexts_file() -> Path:
    """Return the path of the file that contains the user's contexts."""
    return contexts_file(os.environ)


def find_access(given: Given) -> Access:
    """Find URL, API key, CA and project. Raises `WrongUsage` if the URL is missing, and `NoAccess` if the key is."""
    environ = os.environ
    url = checked_url(given.url or environ.get("SLICEPLANE_URL") or None)
    api_key = given.api_key or environ.get("SLICEPLANE_API_KEY") or None
    ca_file = given.ca or (Path(environ["SLICEPLANE_CA"]) if environ.get("SLICEPLANE_CA") else None)
    own_ca = None if ca_file is None else read_ca(ca_file)
    project = given.project or environ.get("SLICEPLANE_PROJECT") or None
    source = _source(environ, given.context, optional=bool(url and api_key))
    if source is None or not source.is_for(url):
        if url is None:
            raise _unconfigured(environ)
        access = Access(url.rstrip("/"), _key(given, api_key, url, ""), own_ca, _word(ca_file), project)
        return _with_lab(environ, access)
    ca = own_ca or source.ca
    access = Access(
        source.url.rstrip("/"),
        _key(given, api_key or source.api_key, source.url, source.login),
        ca,
        _word(ca_file) or (CA_VARIABLE if ca else None),
        project or source.project,
        (*_overrides(environ, given), *(() if api_key else _open_to_others(source.path))),
    )
    return _with_lab(environ, access)


def _with_lab(environ: Mapping[str, str], access: Access) -> Access:
    """Return the access with the SSH key and the network namespaces of the lab nodes, if `./dev up` runs this control
    plane on this machine and the user can read the `client.json` that it wrote.
    """
    for path in config_files(environ, root=os.geteuid() == 0):
        with contextlib.suppress(WrongUsage):
            found = _read(path)
            if found is not None and found.url.rstrip("/") == access.url:
                identity = None if found.identity is None else Path(found.identity)
                return replace(access, identity=identity, namespaces=found.namespaces)
    return access


def checked_url(url: str | None) -> str | None:
    """Return a URL unchanged. Raises `WrongUsage` if it begins with neither `http://` nor `https://`."""
    if url is not None and not url.startswith(("http://", "https://")):
        raise WrongUsage(
            f"{url} is not a URL of a control plane", "use a URL that starts with http:// or https://"
        )
    return url


def read_ca(path: Path) -> str:
    """Return the contents of a CA file. Raises `WrongUsage`."""
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "the file is not a text file"
        raise WrongUsage(
            f"cannot read the CA file {path}: {reason}",
            "set --ca or SLICEPLANE_CA to a PEM file",
        ) from error


def _key(given: Given, api_key: str | None, url: str, login: str) -> str:
    if api_key or given.as_curl:  # with --as-curl nothing is sent
        return api_key or ""
    raise NoAccess(
        f"no API key is configured for {url}",
        *filter(None, [login]),
        "or set the environment variable SLICEPLANE_API_KEY to an API key",
    )


def _word(ca_file: Path | None) -> str | None:
    return None if ca_file is None else shlex.quote(str(ca_file))


def _source(environ: Mapping[str, str], context: str | None, *, optional: bool) -> _Source | None:
    """Return the URL and the values stored with it, from the context or the configuration file that applies. They are
    defaults for the values that neither options nor environment set. Return None if the file does not exist. An
    unreadable file is not an error if `optional` is true and no context is named.
    """
    try:
        contexts = contexts_file(environ)
        if context is not None:
            return _of_context(contexts, context, read_contexts(contexts).named(context))
        if not environ.get("SLICEPLANE_CONFIG"):
            stored = read_contexts(contexts)
            if stored.current is not None:
                return _of_context(contexts, stored.current, stored.named(stored.current))
        return _of_client_file(first_existing(config_files(environ, root=os.geteuid() == 0)))
    except WrongUsage:
        if optional and context is None:
            return None
        raise


def _of_context(path: Path, name: str, context: Context) -> _Source:
    key = None if context.credential is None else context.credential.bearer
    login = f"log in: sliceplane login --context {name}"
    return _Source(path, context.url, key, context.ca, context.project, login=login)


def _of_client_file(path: Path) -> _Source | None:
    found = _read(path)
    if found is None:
        return None
    return _Source(path, found.url, found.api_key, found.ca)


def _unconfigured(environ: Mapping[str, str]) -> WrongUsage:
    path = first_existing(config_files(environ, root=os.geteuid() == 0))
    return WrongUsage(
        f"no control plane is configured: there is no current context, and the file {path} does not exist",
        "start a control plane on this machine: ./dev up",
        "if ./dev up --state FOLDER runs: SLICEPLANE_CONFIG=FOLDER/client.json",
        "log in to another control plane: sliceplane login --url URL",
        "in a script: SLICEPLANE_URL and SLICEPLANE_API_KEY",
    )


def _overrides(environ: Mapping[str, str], given: Given) -> tuple[str, ...]:
    """Return a warning for each variable of the environment that overrides a part of the context named by --context."""
    if given.context is None:
        return ()
    options = {"SLICEPLANE_URL": given.url, "SLICEPLANE_API_KEY": given.api_key}
    return tuple(
        f"the environment variable {name} overrides the context {given.context}"
        for name, option in options.items()
        if environ.get(name) and option is None
    )


def _read(path: Path) -> _ClientFile | None:
    try:
        return msgspec.json.decode(path.read_bytes(), type=_ClientFile)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise WrongUsage(
            f"cannot read the configuration file {path}: {error.strerror}",
            "set SLICEPLANE_CONFIG to the path of another configuration file",
        ) from error
    except msgspec.DecodeError as error:
        raise WrongUsage(
            f"{path} is not a valid configuration file: {error}",
            'write the URL and the API key to the file: {"url": "...", "api_key": "..."}',
        ) from error


def _open_to_others(path: Path) -> tuple[str, ...]:
    if stat.S_IMODE(path.stat().st_mode) & 0o077:
        return (f"{path} contains credentials and others can read it; run chmod 600 {path}",)
    return ()
