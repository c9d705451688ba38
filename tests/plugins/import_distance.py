"""Distance from changed files to test files, counted in imports.

A module depends on the modules that it imports, on the modules that define the fixtures it names, and on the modules
and programs that it names in a string, because tests start programs as processes. If a changed file is not a module,
the modules that name it in a string depend on it. If no module names it, the same applies to its parent folders,
the nearest first.
"""

import re
import subprocess
import tomllib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import grimp

PACKAGES: Final = (
    "bench",
    "control_plane",
    "deploy",
    "events",
    "node_agent",
    "read_models",
    "tasks",
    "tests",
)
_FIXTURE: Final = re.compile(
    r"^@pytest\.fixture(?:\((?P<options>[^@]*?)\))?\n(?:async )?def (?P<name>\w+)", re.MULTILINE | re.DOTALL
)
_QUOTED: Final = re.compile(r"""["']([\w.-]+)["']""")
_ANNOTATED: Final = re.compile(r"\b(\w+): ")


class UnknownBase(Exception):
    """Error: the Git revision to compare with does not exist."""


@dataclass
class Dependents:
    """Import graph of the repository: the source of each module, and the modules that depend on it directly."""

    root: Path
    texts: Mapping[str, str]
    of: Mapping[str, set[str]] = field(default_factory=dict)

    def distances(self, changed: Iterable[str]) -> dict[str, int]:
        """Return the import distance of each module that depends on the changed files. The changed files have the
        distance 0.
        """
        found = {module: 0 for path in changed for module in self._modules_of(path)}
        nearest = list(found)
        for module in nearest:  # grows while it is read: breadth first
            for dependent in sorted(self.of.get(module, ())):
                if dependent not in found:
                    found[dependent] = found[module] + 1
                    nearest.append(dependent)
        return found

    def _modules_of(self, path: str) -> list[str]:
        module = path.removesuffix(".py").replace("/", ".").removesuffix(".__init__")
        if path.endswith(".py") and module in self.texts:
            return [module]
        for name in (Path(path).name, *(folder.name for folder in Path(path).parents if folder.name)):
            written = re.compile(rf"""["'/]{re.escape(name)}["']""")
            naming = [module for module, text in self.texts.items() if written.search(text)]
            if naming:
                return naming
        return []


def dependents(root: Path, packages: Iterable[str] = PACKAGES) -> Dependents:
    """Return the import graph of the repository in `root`, which must be on the import path."""
    packages = tuple(packages)
    graph = grimp.build_graph(*packages, cache_dir=str(root / ".import_linter_cache"))
    files = {module: _file(root, module) for module in graph.modules}
    texts = {module: file.read_text() for module, file in files.items() if file.exists()}
    of: dict[str, set[str]] = defaultdict(set)
    for module in graph.modules:
        of[module] |= graph.find_modules_that_directly_import(module)
    programs = _programs(root)
    for module, text in texts.items():
        for name in _QUOTED.findall(text):
            started = programs.get(name, name)
            for target in (started, f"{started}.__main__"):
                if target in texts and target != module and "." in target:
                    of[target].add(module)
    for user, definer in _fixture_users({m: t for m, t in texts.items() if m.startswith("tests.")}):
        of[definer].add(user)
    return Dependents(root, texts, of)


def _file(root: Path, module: str) -> Path:
    path = root.joinpath(*module.split("."))
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def _programs(root: Path) -> dict[str, str]:
    """Return the module of each program that the project installs."""
    project = tomllib.loads((root / "pyproject.toml").read_text()).get("project", {})
    return {name: entry.partition(":")[0] for name, entry in project.get("scripts", {}).items()}


def _fixture_users(tests: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield each test module that uses a fixture, together with the module that defines the fixture."""
    definers: dict[str, list[str]] = defaultdict(list)
    automatic: list[str] = []
    for module, text in tests.items():
        for found in _FIXTURE.finditer(text):
            options = found["options"] or ""
            renamed = re.search(r'name="(\w+)"', options)
            definers[renamed[1] if renamed else found["name"]].append(module)
            if "autouse=True" in options:
                automatic.append(module)
    for module, text in tests.items():
        for name in {*_ANNOTATED.findall(text), *_QUOTED.findall(text)} & definers.keys():
            visible = [each for each in definers[name] if _reaches(each, module)]
            if visible and (definer := max(visible, key=len)) != module:
                yield module, definer
        for definer in automatic:
            if definer != module and _reaches(definer, module):
                yield module, definer


def _reaches(definer: str, module: str) -> bool:
    """Return whether `module` can use the fixtures of `definer`. All modules can use the fixtures of a plugin, and the
    modules of a folder those of its conftest.
    """
    folder, _, name = definer.rpartition(".")
    return definer == module or (
        module.startswith(f"{folder}.") if name == "conftest" else not name.startswith("test_")
    )


def changed_files(root: Path, base: str) -> tuple[str, list[str]]:
    """Return the Git revision that was compared with, and the files that differ from it, including untracked files.

    An empty `base` stands for the merge base with main; on a clean main, for the last commit's parent. Raises
    `UnknownBase`.
    """
    revision = base or _default_base(root)
    try:
        revision = _git(root, "rev-parse", "--verify", "--quiet", f"{revision}^{{commit}}")[0]
    except subprocess.CalledProcessError:
        raise UnknownBase(f"unknown revision {revision!r}; name a commit or a branch") from None
    changed = _git(root, "diff", "--name-only", revision)
    return revision[:12], sorted({*changed, *_git(root, "ls-files", "--others", "--exclude-standard")})


def _default_base(root: Path) -> str:
    try:
        base = _git(root, "merge-base", "HEAD", "main")[0]
    except subprocess.CalledProcessError:
        raise UnknownBase("there is no branch main to compare with; name a commit or a branch") from None
    is_clean = not _git(root, "status", "--porcelain")
    return "HEAD~" if is_clean and base == _git(root, "rev-parse", "HEAD")[0] else base


def _git(root: Path, *arguments: str) -> list[str]:
    command = ["git", "-c", f"safe.directory={root}", "-c", "core.quotePath=off", *arguments]
    return subprocess.run(command, cwd=root, check=True, capture_output=True, text=True).stdout.splitlines()
