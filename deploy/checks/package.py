"""`python -m deploy.checks.package`: check that the built wheel is complete and that its programs start.

The wheel is built from the files that git lists and the packages for browsers, and installed into an empty environment.
This environment then gets those packages of `.venv` that the wheel requires, directly or indirectly, as links: the
check needs no network, and the import of a package that the wheel does not require fails. Each program prints its help,
and `sliceplane-server migrate` prepares an empty Postgres, for which `sliceplane-server issue-key` then creates a key.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import venv
import zipfile
from collections.abc import Iterator, Mapping
from importlib.metadata import Distribution, distribution, distributions
from pathlib import Path
from typing import Final

import psycopg
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from psycopg import sql

from control_plane.programs import SERVER
from control_plane.schema import admin_engine
from deploy.checks.migrations import differences
from deploy.embedded.postgres import APP_ROLE, PostgresServer
from deploy.embedded.signing_key import ensure_personal_key
from deploy.embedded.stack import sqlalchemy_url
from deploy.setup.repository import BROWSER_PACKAGES, ROOT

NAME: Final = "sliceplane"
MIGRATIONS: Final = "control_plane/migrations"
NODE_MODULES: Final = ("inotify_simple", "libvirt", "libvirt_qemu", "ovs", "ovsdbapp", "pyroute2")
"""Modules of the extra `node`. The environment lacks them: modules that import them are for real nodes only."""
SECONDS: Final = 300
"""Timeout of one program in seconds. It is long because other work may use all processors."""
_IMPORTS: Final = """\
import importlib, sys
for name in {names}:
    try:
        importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name.partition(".")[0] not in {optional}:
            sys.exit(f"{{name}} imports {{error.name}}, which is neither in the wheel nor in a package that it requires")
"""
_KEY: Final = re.compile(r"sp_\S+\n")


class Defect(Exception):
    """The wheel or its installation has a defect; the message describes the defect."""


def main() -> int:
    """Print what is wrong with the wheel or its installation. Return 1 if there is a defect, else 0."""
    with tempfile.TemporaryDirectory(prefix="sp-package-") as name:
        folder = Path(name)
        folder.chmod(0o711)  # when this check runs as root, the database server runs as another user
        try:
            _check(folder)
        except Defect as defect:
            sys.stderr.write(f"{defect}\n")
            return 1
    return 0


def _check(folder: Path) -> None:
    wheel = _build(folder)
    if missing := _missing_files(wheel):
        raise Defect(f"the wheel lacks {', '.join(missing)}; setup.py selects its contents")
    environment = folder / "environment"
    venv.create(environment, symlinks=True)
    _pip(environment, "install", "--no-index", "--no-deps", str(wheel))
    packages = next(environment.glob("lib/python3*/site-packages"))
    installed = next(each for each in distributions(path=[str(packages)]) if each.name == NAME)
    _link_requirements(installed, packages)
    _pip(environment, "check")
    _import_modules(environment, installed, folder)
    for program in installed.entry_points.select(group="console_scripts"):
        _run(environment, program.name, "--help", cwd=folder)
    _prepare_database(environment, folder)


def _build(folder: Path) -> Path:
    """Build the wheel from a copy, because setuptools writes into the folder that it builds."""
    source = folder / "source"
    for path in _repository_files():
        (source / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / path, source / path)
    _pip(
        None,
        "wheel",
        "--no-index",
        "--no-deps",
        "--no-build-isolation",
        "--wheel-dir",
        str(folder),
        str(source),
    )
    return next(folder.glob("*.whl"))


def _repository_files() -> list[Path]:
    command = [
        "git",
        "-c",
        f"safe.directory={ROOT}",
        "ls-files",
        "-z",
        "--cached",
        "--others",
        "--exclude-standard",
    ]
    listed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    found = [Path(name) for name in listed.split("\0") if name and (ROOT / name).is_file()]
    return [*found, *_browser_files()]


def _browser_files() -> list[Path]:
    found = [path.relative_to(ROOT) for path in BROWSER_PACKAGES.rglob("*") if path.is_file()]
    if not found:
        raise Defect(f"{BROWSER_PACKAGES} is missing; ./dev installs it")
    return found


def _missing_files(wheel: Path) -> list[str]:
    """Return the files of the product's folders that are not in the wheel, under the paths of the wheel."""
    with zipfile.ZipFile(wheel) as archive:
        contents = {*archive.namelist()}
    folders = {path.partition("/")[0] for path in contents}
    if "alembic" in folders:
        raise Defect(
            f"the wheel has a top-level package `alembic`, which would hide the library Alembic; package the migrations as {MIGRATIONS}"
        )
    files = {re.sub("^alembic/", f"{MIGRATIONS}/", str(path)) for path in _repository_files()}
    return sorted(path for path in files - contents if path.partition("/")[0] in folders)


def _link_requirements(installed: Distribution, packages: Path) -> None:
    """Link every package of `.venv` that the wheel requires, without its extras, into the folder `packages`."""
    for required in _requirements(installed, frozenset()).values():
        for name in {file.parts[0] for file in required.files or ()} - {"..", "__pycache__"}:
            if not (packages / name).exists():
                (packages / name).symlink_to(str(required.locate_file(name)))


def _requirements(root: Distribution, extras: frozenset[str]) -> dict[str, Distribution]:
    """Return the packages that the package `root` with `extras` requires, directly or not, by name and extras."""
    found: dict[str, Distribution] = {}
    pending = [(root, extras)]
    while pending:
        of, of_extras = pending.pop()
        for requirement in map(Requirement, of.requires or ()):
            marker = requirement.marker
            if marker and not any(marker.evaluate({"extra": extra}) for extra in ("", *of_extras)):
                continue
            key = f"{canonicalize_name(requirement.name)}{sorted(requirement.extras)}"
            if key not in found:
                found[key] = distribution(requirement.name)
                pending.append((found[key], frozenset(requirement.extras)))
    return found


def _import_modules(environment: Path, installed: Distribution, folder: Path) -> None:
    """Import every module of the wheel in one process, except the migrations, which Alembic runs."""
    program = folder / "import_modules.py"
    program.write_text(_IMPORTS.format(names=[*_modules(installed)], optional=NODE_MODULES))
    _run(environment, "python", "-I", str(program), cwd=folder)


def _modules(installed: Distribution) -> Iterator[str]:
    for file in installed.files or ():
        if file.suffix == ".py" and not file.is_relative_to(MIGRATIONS):
            yield ".".join(file.with_suffix("").parts).removesuffix(".__init__")


def _prepare_database(environment: Path, folder: Path) -> None:
    server = PostgresServer(folder / "postgres", folder / "run", settings={"fsync": "off"})
    server.start()
    try:
        with psycopg.connect(server.admin_dsn, autocommit=True) as admin:
            admin.execute(
                sql.SQL("drop role {}").format(sql.Identifier(APP_ROLE))
            )  # an operator's server has no roles
        _run(
            environment, SERVER, "migrate", cwd=folder, settings={"SLICEPLANE_MIGRATE_URL": server.admin_dsn}
        )
        with admin_engine(server.admin_dsn).connect() as connection:
            if lacking := differences(connection):
                raise Defect(f"the installed migrations lack changes that the code defines: {lacking}")
        with psycopg.connect(server.admin_dsn, autocommit=True) as admin:
            admin.execute(
                sql.SQL("alter role {} password {}").format(
                    sql.Identifier(APP_ROLE), sql.Literal(server.app_password)
                )
            )
        settings = {
            "SLICEPLANE_DATABASE_URL": sqlalchemy_url(server.app_dsn).render_as_string(hide_password=False),
            "SLICEPLANE_REDIS_URL": "redis://127.0.0.1:1",  # issue-key does not connect to it
            "SLICEPLANE_PERSONAL_KEY_FILE": str(ensure_personal_key(folder / "personal-key")),
        }
        printed = _run(environment, SERVER, "issue-key", "check", cwd=folder, settings=settings)
    finally:
        server.stop()
    if not _KEY.fullmatch(printed):
        raise Defect(f"`{SERVER} issue-key check` must print only a key, but it printed {printed!r}")


def _pip(environment: Path | None, *words: str) -> None:
    """Run the pip of `.venv`, for `environment` if it is given, else for `.venv`. Raises `Defect` with pip's output."""
    target = () if environment is None else ("--python", str(environment / "bin" / "python"))
    command = [sys.executable, "-m", "pip", *target, "--quiet", "--disable-pip-version-check", *words]
    _finished(command, cwd=ROOT, environment=os.environ)


def _run(
    environment: Path, program: str, *words: str, cwd: Path, settings: Mapping[str, str] | None = None
) -> str:
    """Run an installed program outside the repository and return its output.

    Its environment variables are PATH and `settings` only.
    """
    command = [str(environment / "bin" / program), *words]
    return _finished(command, cwd=cwd, environment={"PATH": os.defpath, **(settings or {})})


def _finished(command: list[str], *, cwd: Path, environment: Mapping[str, str]) -> str:
    """Return the standard output of a command. Raises `Defect` with all of its output if it fails or times out."""
    words = " ".join((Path(command[0]).name, *command[1:]))
    try:
        done = subprocess.run(
            command, cwd=cwd, env=environment, check=False, capture_output=True, text=True, timeout=SECONDS
        )
    except subprocess.TimeoutExpired:
        raise Defect(f"`{words}` did not end within {SECONDS} s") from None
    if done.returncode != 0:
        raise Defect(
            f"`{words}` failed with exit code {done.returncode}:\n{done.stdout}{done.stderr}".rstrip()
        )
    return done.stdout


if __name__ == "__main__":
    sys.exit(main())
