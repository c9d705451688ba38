"""Tests of a TypeScript client. `openapi-typescript` generates its types from `docs/openapi.json`.

The compiler accepts a program that uses the API correctly, which then runs against a control plane, and refuses one
that names what the document does not have.
"""

import json
import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import pytest

from deploy.setup.npm import node_of
from tests.api.node import KEY, admit
from tests.plugins.requirements import missing_server
from tests.servers.lab import kept_folder
from tests.servers.npm_packages import NotInstalled, ensure_installed
from tests.servers.plane import ADMIN_KEY, RunningPlane

FILES: Final = Path(__file__).with_name("typescript")
DOCUMENT: Final = Path(__file__).parents[2] / "docs/openapi.json"
_SECONDS: Final = 100
_GENERATOR: Final = "openapi-typescript/bin/cli.js"
_COMPILER: Final = "compiler/bin/tsc"
_STRICT: Final = (
    "--strict",
    "--noUncheckedIndexedAccess",
    "--noEmit",
    "--skipLibCheck",
    "--allowImportingTsExtensions",
    "--target es2022",
    "--module nodenext",
    "--types node",
)
_ERROR: Final = re.compile(r"^(?P<file>\w+\.ts)\((?P<line>\d+),", re.MULTILINE)


class Project:
    """A folder with the programs and the generated types, in which Node.js finds the npm packages."""

    def __init__(self, folder: Path, installed: Path) -> None:
        self.folder, self._node = folder, node_of(installed)
        (folder / "node_modules").symlink_to(installed / "node_modules")
        (folder / "package.json").write_text('{"type": "module"}')
        for program in FILES.glob("*.ts"):
            shutil.copy(program, folder)

    def node(self, arguments: Sequence[str], **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(self._node), *arguments],
            cwd=self.folder,
            env={**os.environ, **environment},
            capture_output=True,
            text=True,
            timeout=_SECONDS,
            check=False,
        )

    def generate(self, document: Path) -> None:
        """Generate `api.ts`. A property with a default is optional in a request."""
        arguments = [str(document), "--output", "api.ts", "--default-non-nullable", "false"]
        done = self.node([f"node_modules/{_GENERATOR}", *arguments])
        assert done.returncode == 0, done.stderr

    def errors(self) -> set[tuple[str, int]]:
        """Return the file and the line of each error that the compiler finds."""
        options = [word for option in _STRICT for word in option.split()]
        done = self.node([f"node_modules/{_COMPILER}", *options, "client.ts", "wrong.ts"])
        found = {(error["file"], int(error["line"])) for error in _ERROR.finditer(done.stdout)}
        assert bool(found) == bool(done.returncode), done.stdout + done.stderr
        return found


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    try:
        installed = ensure_installed(FILES, kept_folder() / "typescript")
    except NotInstalled as missing:
        missing_server(f"the TypeScript compiler of the tests: {missing}")
    made = Project(tmp_path_factory.mktemp("typescript"), installed)
    made.generate(DOCUMENT)
    return made


def test_generated_typescript_client_fails_to_compile_with_any_name_that_the_openapi_document_does_not_have(
    project: Project,
) -> None:
    lines = (FILES / "wrong.ts").read_text().splitlines()
    wrong = {("wrong.ts", number) for number, line in enumerate(lines, start=1) if "// refused" in line}
    assert len(wrong) == 5
    assert project.errors() == wrong


def test_generated_client_creates_lists_watches_and_releases_an_allocation(
    project: Project, shared_plane: RunningPlane
) -> None:
    admit(shared_plane, "n1")
    done = project.node(["client.ts", shared_plane.url, KEY], SLICEPLANE_API_KEY=ADMIN_KEY)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {
        "project": "typescript",
        "listed": 1,
        "event": "allocation.requested",
        "state": "releasing",
    }
