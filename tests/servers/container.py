"""PostgreSQL server in a Docker container. The image contains this machine's PostgreSQL and the libraries that it
needs.

The image is made with `docker import`, so that no registry is needed. The container has no network: clients connect to
the socket in a folder that the container shares with this machine.
"""

import io
import re
import subprocess
import tarfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import docker
import psycopg
from docker.errors import DockerException
from testcontainers.core.config import testcontainers_config
from testcontainers.core.container import DockerContainer

from control_plane.schema import migrate
from deploy.embedded.postgres import PostgresServer
from deploy.embedded.postgres_cluster import ensure_cluster, find_programs, private_folder, server_user
from tests.servers.postgres import server_folder
from tests.waiting import until

IMAGE: Final = "sliceplane-test-postgres"
_DATA_FOLDERS: Final = (Path("/usr/share/postgresql"), Path("/usr/share/zoneinfo"))
_START_SECONDS: Final = 30.0
# The container that removes others after a crash needs an image from a registry.
testcontainers_config.ryuk_disabled = True


def engine_is_available() -> bool:
    """Return whether a Docker engine responds at DOCKER_HOST or at its usual socket."""
    try:
        return bool(docker.from_env().ping())
    except DockerException:
        return False


@dataclass
class ContainerServer(PostgresServer):
    """PostgreSQL server with its files on this machine and its processes in a Docker container."""

    _container: DockerContainer | None = field(default=None, init=False, repr=False)

    def start(self) -> None:
        """Start the PostgreSQL server and wait until it answers. Raises `AssertionError` if it does not
        answer in time.
        """
        programs, user = find_programs(), server_user()
        self._passwords = ensure_cluster(programs, self.folder, user)
        private_folder(self.run_folder, user)
        self._container = (
            DockerContainer(_image(programs))
            .with_command([str(programs / "postgres"), "-D", str(self.folder / "data"), *self._options()])
            .with_volume_mapping(str(self.folder), str(self.folder), "rw")
            .with_volume_mapping(str(self.run_folder), str(self.run_folder), "rw")
            .with_kwargs(network_mode="none", user=f"{user.pw_uid}:{user.pw_gid}" if user else None)
        )
        self._container.start()
        try:
            until(self._answers, "PostgreSQL in the container answers", _START_SECONDS)
        except AssertionError as late:
            raise AssertionError(f"{late}: {self._container.get_logs()}") from None
        self._ensure_role_and_database()

    def stop(self) -> None:
        if self._container is not None:
            self._container.stop()

    def _answers(self) -> bool:
        try:
            psycopg.connect(self.admin_dsn_of("postgres"), connect_timeout=5).close()
        except psycopg.OperationalError:
            return False
        return True


@contextmanager
def server_in_container() -> Iterator[PostgresServer]:
    """Run a PostgreSQL server with a migrated template database in a Docker container."""
    with server_folder() as folder:
        server = ContainerServer(folder / "postgres", folder / "run", settings={"fsync": "off"})
        try:
            server.start()
            migrate(server.admin_dsn)
            yield server
        finally:
            server.stop()


def _image(programs: Path) -> str:
    """Return the name of the Docker image that contains the PostgreSQL programs in `programs`. Import the image if the
    Docker engine does not have it.
    """
    version = re.sub(r"[^\w.]+", "-", _output(programs / "postgres", "--version")).strip("-")
    name = f"{IMAGE}:{version}"
    client = docker.from_env()
    if not client.images.list(name):
        client.api.import_image_from_data(_root_folder(programs), repository=IMAGE, tag=version)
    return name


def _root_folder(programs: Path) -> bytes:
    """Return a tar archive with the installation of PostgreSQL, its libraries, and a user database. It is the root
    folder of the Docker image.
    """
    installation, packed = programs.parent, io.BytesIO()
    needed = [path for path in installation.rglob("*") if not path.is_dir() and not _is_for_jit(path)]
    shared = [path for folder in _DATA_FOLDERS for path in folder.rglob("*") if path.is_file()]
    libraries = _libraries([path for path in needed if path.suffix == ".so" or path.name == "postgres"])
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for path in (*needed, *shared, *libraries, Path("/etc/passwd")):
            archive.addfile(_member(archive, path), path.open("rb"))
        for folder in ("tmp", "run"):
            archive.addfile(_folder(folder, 0o1777))
    return packed.getvalue()


def _is_for_jit(path: Path) -> bool:
    """Return whether only JIT compilation of queries needs the file. Such files are larger than all others together,
    and the server runs without them.
    """
    return "llvmjit" in path.name or "bitcode" in path.parts


def _member(archive: tarfile.TarFile, path: Path) -> tarfile.TarInfo:
    """Return the archive entry of a file, after adding the entries of its folders to the archive. A link becomes a copy
    of its target.
    """
    known = set(archive.getnames())
    for folder in reversed(path.parents[:-1]):
        if str(folder).strip("/") not in known:
            archive.addfile(_folder(str(folder), 0o755))
    found = archive.gettarinfo(path.resolve(), arcname=str(path))
    found.type = tarfile.REGTYPE
    return found


def _folder(name: str, permissions: int) -> tarfile.TarInfo:
    made = tarfile.TarInfo(name.strip("/"))
    made.type, made.mode = tarfile.DIRTYPE, permissions
    return made


def _libraries(binaries: Sequence[Path]) -> set[Path]:
    """Return the shared libraries that the dynamic loader needs for these binaries (ldd(1)), and the loader itself."""
    printed = "\n".join(_output(Path("/usr/bin/ldd"), str(each)) for each in binaries)
    return {Path(found) for found in re.findall(r"(/\S+) \(0x", printed)}


def _output(program: Path, *arguments: str) -> str:
    return subprocess.run([program, *arguments], check=True, capture_output=True, text=True).stdout
