"""Pytest plugin that fails a test that leaves something behind: a process, a bridge, a domain, a database or a
temporary folder.

A resource that exists at the end of a test must have existed at the start of the run, or belong to a shared fixture
that is still in use: it appeared while that fixture was set up, or it is a process of a system in that fixture's
temporary folder. A process is identified by its command line, so that a program that a test restarted does not count as
left behind. Tests marked `shared_system` restart and change the system of their module in turn; only the last of these
tests is checked. A lab host is one process here: when it ends, its namespaces and all processes in them end. Everything
is read from /proc and from folders, which takes a millisecond; programs such as `ovs-vsctl` would take longer than most
tests.
"""

import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Generator, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pytest

from tests.waiting import until

Found = Counter[str]
_PROC: Final = Path("/proc")
_LAB_HOST: Final = "node_agent.lab.host"
_DOMAIN_FOLDERS: Final = ("etc/libvirt/qemu", "run/libvirt/qemu")
_BRIDGE: Final = "br-"
_KEPT_BRIDGES: Final = {"br-slice", "br-other"}
"""Bridges that may remain after a test: an agent creates `br-slice` and keeps it; tests of foreign bridges share
`br-other`.
"""
_OF_MULTIPROCESSING: Final = "pymp-"
_HELPERS: Final = (
    "multiprocessing.forkserver",
    "multiprocessing.resource_tracker",
    "tests.servers.program_template",
)


@dataclass
class Leftovers:
    """Check for leftover resources. It reports neither resources of shared fixtures in use, nor resources that existed
    at the start of the run or that it has already reported.
    """

    known: Found = field(default_factory=Counter)
    folders: set[str] = field(default_factory=set)
    """All temporary folders of this process."""
    of_fixtures: dict[Any, "Owned"] = field(default_factory=dict)

    def found(self) -> Found:
        """Return the resources that a test left behind: those that exist now and neither existed before nor belong to a
        shared fixture.
        """
        left = snapshot(self.folders)
        for owned in (self.known, *(each.things for each in self.of_fixtures.values())):
            left -= owned
        shared = [folder for each in self.of_fixtures.values() for folder in each.folders]
        return Counter(
            {
                what: count
                for what, count in left.items()
                if not (what.startswith("process ") and any(each in what for each in shared))
            }
        )


@dataclass(frozen=True)
class Owned:
    """Resources (processes, temporary folders, ...) that appeared during the setup of one shared fixture."""

    things: Found
    folders: frozenset[str]


_leftovers: Final = Leftovers()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addini(
        "leftover_seconds", "how long something that is about to end may remain after its test", default="5"
    )


def pytest_sessionstart() -> None:
    sys.addaudithook(_note_folder)
    _leftovers.known = snapshot(set())


def _note_folder(event: str, arguments: tuple[Any, ...]) -> None:
    """Record a folder that this process creates directly in the folder for temporary files, except folders of
    multiprocessing.
    """
    if event == "tempfile.mkdtemp":
        folder = Path(os.fsdecode(arguments[0]))
        if str(folder.parent) == tempfile.gettempdir() and not folder.name.startswith(_OF_MULTIPROCESSING):
            _leftovers.folders.add(str(folder))


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(fixturedef: pytest.FixtureDef[Any]) -> Generator[None, Any, Any]:
    if fixturedef.scope == "function":
        return (yield)
    before, folders, nested = snapshot(_leftovers.folders), set(_leftovers.folders), {*_leftovers.of_fixtures}
    try:
        return (yield)
    finally:
        things = snapshot(_leftovers.folders) - before
        for each, owned in _leftovers.of_fixtures.items():
            if each not in nested:
                things -= owned.things
        _leftovers.of_fixtures[fixturedef] = Owned(things, frozenset(_leftovers.folders - folders))


def pytest_fixture_post_finalizer(fixturedef: pytest.FixtureDef[Any]) -> None:
    _leftovers.of_fixtures.pop(fixturedef, None)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Generator[None, Any, Any]:
    try:
        return (yield)
    finally:
        is_last = nextitem is None or nextitem.path != item.path
        if is_last or item.get_closest_marker("shared_system") is None:
            _report(item)


def _report(item: pytest.Item) -> None:
    left = _leftovers.found()
    if left:
        try:
            until(
                lambda: not _leftovers.found(),
                "nothing is left",
                float(item.config.getini("leftover_seconds")),
            )
        except AssertionError:
            left = _leftovers.found()
            _leftovers.known += left
            listed = "\n".join(f"  {what}" for what in sorted(left))
            pytest.fail(f"{item.nodeid} left behind:\n{listed}", pytrace=False)


def snapshot(folders: set[str]) -> Found:
    """Return the resources that exist now: this process's descendants with their databases, bridges and domains, and
    those of the temporary folders `folders` that exist.
    """
    found: Found = Counter(f"folder {each}" for each in folders if Path(each).exists())
    for pid, argv in _processes(os.getpid()):
        found[f"process {' '.join(argv)}"] += 1
        if _LAB_HOST in argv:
            found.update(_in_lab_host(pid, argv[-1]))
        if "-D" in argv and argv[0].endswith("/postgres"):
            data = argv[argv.index("-D") + 1]
            # One folder per database, named after its object id; `pgsql_tmp` is not a database.
            databases = [name for name in _names(Path(data) / "base") if name.isdigit()]
            found.update(f"database {name} of {data}" for name in databases)
    return found


def _in_lab_host(pid: int, configuration: str) -> Iterator[str]:
    """Yield the OVS bridges and libvirt domains of a lab host. `pid` is the first process of the lab host."""
    node = Path(configuration).parent.name
    for link in _links(pid):
        if link.startswith(_BRIDGE) and link not in _KEPT_BRIDGES:
            yield f"bridge {link} of {node}"
    for folder in _DOMAIN_FOLDERS:
        for name in _names(_PROC / str(pid) / "root" / folder):
            if name.endswith(".xml"):
                yield f"domain {name} in /{folder} of {node}"


def _links(pid: int) -> set[str]:
    try:
        lines = (_PROC / str(pid) / "net" / "dev").read_text().splitlines()[2:]
    except OSError:
        return set()
    return {line.partition(":")[0].strip() for line in lines}


def _names(folder: Path) -> list[str]:
    try:
        return [each.name for each in folder.iterdir()]
    except OSError:
        return []


def _processes(pid: int) -> Iterator[tuple[int, list[str]]]:
    """Yield the descendants of a process with their command lines, without the processes inside lab hosts."""
    for thread in _names(_PROC / str(pid) / "task"):
        for child in _children(pid, thread):
            argv = _argv(child)
            if (
                not argv[0]
                or argv[0].startswith("postgres: ")
                or any(each in " ".join(argv) for each in _HELPERS)
            ):
                continue
            yield child, argv
            if _LAB_HOST not in argv or argv[0].endswith("unshare"):
                yield from _processes(child)


def _children(pid: int, thread: str) -> list[int]:
    try:
        return [*map(int, (_PROC / str(pid) / "task" / thread / "children").read_text().split())]
    except OSError:
        return []


def _argv(pid: int) -> list[str]:
    """Return the command line of a process; one empty word if the process has ended. The kernel shows no command line
    for a moment after exec(), so the function waits for it.
    """
    folder, deadline = _PROC / str(pid), time.monotonic() + 0.1
    try:
        while not (line := (folder / "cmdline").read_bytes().decode(errors="replace").strip("\0")):
            has_ended = (folder / "stat").read_text().rpartition(")")[2].split()[0] in "ZX"
            if has_ended or time.monotonic() > deadline:
                break
            time.sleep(0.001)
    except OSError:
        return [""]
    return line.split("\0")
