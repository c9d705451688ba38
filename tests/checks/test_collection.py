"""Test collection works without the packages of the host drivers, which an ordinary user's environment lacks."""

import subprocess
import sys

from tests.checks.files import ROOT

# Python raises ModuleNotFoundError for a module that is None in sys.modules.
WITHOUT_DRIVERS = """
import sys, pytest
sys.modules.update(dict.fromkeys(("libvirt", "ovs", "ovsdbapp", "pyroute2")))
sys.exit(pytest.main(["--collect-only", "--quiet", "-p", "no:cacheprovider"]))
"""


def test_all_tests_are_collected_if_the_packages_of_the_host_drivers_are_missing() -> None:
    collected = subprocess.run(
        [sys.executable, "-c", WITHOUT_DRIVERS], cwd=ROOT, check=False, capture_output=True, text=True
    )
    errors = [line for line in collected.stdout.splitlines() if line.startswith(("E  ", "ERROR"))]
    assert errors == []
    assert collected.returncode == 0
