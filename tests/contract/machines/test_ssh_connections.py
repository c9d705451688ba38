"""Tests of the agent's connection to the SSH port of a slice, on a host with misleading routes."""

import json
import subprocess
import sys

import pytest

pytestmark = pytest.mark.node


def test_connection_to_a_slice_leads_over_the_bridge_of_the_slices_whatever_routes_the_host_has() -> None:
    # Four seconds: a connection that no machine answers is refused after a timeout.
    program = [sys.executable, "-m", "tests.contract.machines.routed_host"]
    run = subprocess.run(
        ["unshare", "--net", "--fork", "--kill-child", *program],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    assert json.loads(run.stdout) == {
        "slice": "slice",
        "other": "ssh_not_reachable",
        "own": "ssh_not_reachable",
    }
