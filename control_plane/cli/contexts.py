"""Named contexts: the control planes that the user has logged in to, in one file that only the user can read.

The file is `sliceplane/config.json` in $XDG_CONFIG_HOME, or in ~/.config. It is replaced as a whole, so that a crash
leaves the old or the new file. Each way to log in has its own type of credential.
"""

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path

import msgspec

from control_plane.cli.failures import WrongUsage


class ApiKey(msgspec.Struct, frozen=True, tag="api_key"):
    """A stored API key, meant for programs: `sliceplane login` stores a session for people."""

    key: str

    @property
    def bearer(self) -> str:
        """The secret that requests send as a Bearer token."""
        return self.key


class StoredSession(msgspec.Struct, frozen=True, tag="session"):
    """The id and the secret of a session of the control plane."""

    id: str
    secret: str

    @property
    def bearer(self) -> str:
        """The secret that requests send as a Bearer token."""
        return self.secret


Credential = ApiKey | StoredSession
"""The kinds of credentials that a context can store."""


class Context(msgspec.Struct, frozen=True, omit_defaults=True):
    """One control plane. Without a credential, the user has logged out. `ca` is a PEM; None: the system's CAs."""

    url: str
    credential: Credential | None = None
    ca: str | None = None
    project: str | None = None


class Contexts(msgspec.Struct, frozen=True, omit_defaults=True):
    """All contexts by name. `current` is the context to use if a command names none; None: a command uses no context
    then.
    """

    current: str | None = None
    contexts: dict[str, Context] = {}

    def named(self, name: str) -> Context:
        """Return the context with this name. Raises `WrongUsage` if it does not exist."""
        try:
            return self.contexts[name]
        except KeyError:
            known = ", ".join(sorted(self.contexts)) or "none"
            raise WrongUsage(
                f"there is no context {name!r}; the contexts are: {known}",
                f"create the context: sliceplane login --context {name} --url URL",
            ) from None

    def with_context(self, name: str, context: Context, *, current: bool) -> "Contexts":
        """Return the contexts with this one added or replaced. If `current` is true, it is made the current context."""
        return Contexts(name if current else self.current, {**self.contexts, name: context})

    def without(self, name: str) -> "Contexts":
        """Return the contexts without the one with this name. If it was the current context, no context is current."""
        self.named(name)
        left = {each: context for each, context in self.contexts.items() if each != name}
        return Contexts(None if self.current == name else self.current, left)


def contexts_file(environ: Mapping[str, str]) -> Path:
    """Return the path of the file that contains the contexts of the user."""
    home = Path(environ.get("HOME", "~")).expanduser()
    return Path(environ.get("XDG_CONFIG_HOME") or home / ".config") / "sliceplane/config.json"


def read_contexts(path: Path) -> Contexts:
    """Return the contexts in a file; none if the file does not exist. Raises `WrongUsage` if the file is unreadable."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=Contexts)
    except FileNotFoundError:
        return Contexts()
    except OSError as error:
        raise WrongUsage(
            f"cannot read the file of contexts {path}: {error.strerror}",
            f"make the file readable: chmod 600 {path}",
        ) from error
    except msgspec.DecodeError as error:
        raise WrongUsage(
            f"{path} is not a valid file of contexts: {error}",
            "correct or remove the file, then log in again: sliceplane login",
        ) from error


def write_contexts(path: Path, contexts: Contexts) -> None:
    """Replace the file that contains the contexts; only the user can read it. Raises `WrongUsage` if it cannot be
    written.
    """
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        # A file of `mkstemp` has mode 0600.
        descriptor, name = tempfile.mkstemp(prefix=".config-", dir=path.parent)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(msgspec.json.format(msgspec.json.encode(contexts), indent=2) + b"\n")
                file.flush()
                os.fsync(file.fileno())
            os.replace(name, path)
        except BaseException:
            Path(name).unlink()
            raise
    except OSError as error:
        raise WrongUsage(
            f"cannot write the file of contexts {path}: {error.strerror}",
            "set XDG_CONFIG_HOME to a writable folder",
        ) from error
