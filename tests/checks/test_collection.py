"""The tests stand without the host drivers' packages, which an ordinary user's environment lacks."""

import subprocess
import sys

from tests.checks.files import ROOT

# A module that is None cannot be imported: Python raises ModuleNotFoundError for it.
WITHOUT_DRIVERS = """
import sys, pytest
sys.modules.update(dict.fromkeys(("libvirt", "ovs", "ovsdbapp", "pyroute2")))
sys.exit(pytest.main(["--collect-only", "--quiet", "-p", "no:cacheprovider"]))
"""


def test_every_test_is_collected_without_the_host_drivers_packages() -> None:
    collected = subprocess.run(
        [sys.executable, "-c", WITHOUT_DRIVERS], cwd=ROOT, check=False, capture_output=True, text=True
    )
    errors = [line for line in collected.stdout.splitlines() if line.startswith(("E  ", "ERROR"))]
    assert errors == []
    assert collected.returncode == 0
