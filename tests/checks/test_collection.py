"""Tests can be collected without the packages of the host drivers, which an ordinary user's environment lacks."""

import subprocess
import sys

from tests.checks.files import ROOT, python_files

# Python raises ModuleNotFoundError for a module that is None in sys.modules. A module may skip its tests with
# the exception of pytest's `skip`.
IMPORTS = """
import importlib, sys, traceback
from pytest import skip
sys.modules.update(dict.fromkeys(("libvirt", "ovs", "ovsdbapp", "pyroute2")))
for module in sys.argv[1:]:
    try:
        importlib.import_module(module)
    except skip.Exception:
        pass
    except Exception:
        print(module, traceback.format_exc())
"""


def test_all_test_modules_can_be_imported_if_the_packages_of_the_host_drivers_are_missing() -> None:
    files = [each.relative_to(ROOT) for each in python_files() if each.name.startswith(("test_", "conftest"))]
    modules = [".".join(each.with_suffix("").parts) for each in files if each.parts[0] == "tests"]
    assert len(modules) > 200
    command = [sys.executable, "-c", IMPORTS, *modules]
    imported = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    assert imported.stdout == ""
