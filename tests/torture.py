"""Command `./dev torture [--seed N] [--only P11 ...]`: it runs all tests of the promises (docs/promises.md) with their
full counts.

`./dev test` runs the same tests with a tenth of the count or less and a new seed for each run. However pytest is
started, the environment variables SLICEPLANE_TORTURE=full and SLICEPLANE_TORTURE_SEED select the full counts and the
seed. A failing test shows the seed of its run; the same seed repeats the workload, but not the interleaving. The end of
the output shows the planned, run and skipped cases of each promise; the run fails if fewer cases ran than planned.
"""

import argparse
import os
import sys
from collections.abc import Sequence
from typing import Final

import pytest

from tests import matrix
from tests.plugins.tally import PATHS

PROMISES: Final = {
    "P1": (
        "tests/faults/simulated/test_killed_at_failpoints.py",
        "tests/faults/simulated/test_killed_neighbours.py",
        "tests/agent/program/test_process.py",
    ),
    "P2": ("tests/faults/lab/test_killed_programs.py",),
    "P3": ("tests/faults/lab/test_killed_programs.py",),
    "P4": ("tests/faults/lab/test_bad_links.py", "tests/faults/test_bad_connections.py"),
    "P5": ("tests/agent/slots/test_duplicates.py", "tests/agent/slots/test_payloads.py"),
    "P6": ("tests/faults/simulated/test_redis_lost.py", "tests/faults/test_bad_connections.py"),
    "P7": ("tests/faults/simulated/test_redelivery.py", "tests/queue/test_recovery.py"),
    "P8": ("tests/faults/test_clocks.py", "tests/faults/absence"),
    "P9": ("tests/road/test_identity.py",),
    "P10": ("tests/faults/claims",),
    "P11": ("tests/ledger/test_no_event_is_skipped.py",),
    "P12": ("tests/projections/test_histories.py", "tests/projections/test_swap.py", "tests/golden"),
    "P13": ("tests/audit",),
    "P14": ("tests/ledger/test_roles.py",),
    "P15": ("tests/api/history/test_watch_faults.py",),
    "P16": (
        "tests/agent/lab_nodes/test_cycles.py",
        "tests/agent/lab_nodes/test_planted_leftovers.py",
        "tests/agent/lab_nodes/test_release_cuts_connections.py",
        "tests/contract/network/traffic/test_dhcp_cycles.py",
        "tests/up/test_up.py::test_dev_up_interrupted_at_any_stage_leaves_nothing_behind",
    ),
    "P17": ("tests/agent/lab_nodes/test_drift.py",),
    "P18": (
        "tests/contract/network/traffic/test_attacks.py",
        "tests/contract/network/traffic/test_frames.py",
        "tests/contract/network/traffic/test_ingress_frames.py",
        "tests/contract/network/traffic/test_representor_frames.py",
    ),
    "P19": (
        "tests/contract/network/traffic/test_fail_closed.py",
        "tests/contract/network/traffic/test_switch_restart.py",
        "tests/agent/lab_nodes/test_real_node.py",
        "tests/agent/lab_nodes/test_restart_leaks.py",
    ),
    "P20": (
        "tests/queue/test_greedy_node.py",
        "tests/queue/test_permissions.py",
        "tests/queue/test_signing.py",
        "tests/queue/test_connection_limits.py",
        "tests/dispatch/test_queue_time.py",
        "tests/dispatch/test_queue_watch.py",
    ),
    "P21": ("tests/api/access/test_routes.py",),
    "P22": ("tests/api/requests/test_fuzzing.py",),
    "P23": ("tests/faults/simulated/test_canaries.py",),
    "P26": (
        "tests/agent/program/test_resync.py",
        "tests/agent/lab_nodes/test_reboot.py",
        "tests/up/test_up.py::test_dev_up_after_all_processes_were_killed_makes_the_slice_active_again_and_keeps_public_addresses",
        "tests/up/test_up.py::test_lab_node_that_dies_is_restarted_together_with_its_slice_by_dev_up",
    ),
    "P28": ("tests/faults/absence",),
    "P29": ("tests/faults/test_stopped_appender.py",),
    "P30": ("tests/api/requests/test_idempotency.py",),
    "P31": ("tests/api/access/test_access_completeness.py",),
    "NOD-1": ("tests/passthrough",),
    "ALC-2": ("tests/api/nodes/test_drains.py",),
    "ALC-5": ("tests/agent/lab_nodes/test_root_disks.py", "tests/road/test_changed_catalogue.py"),
    "ALC-6": ("tests/placement/test_random_fleets.py", "tests/api/allocations/test_placement.py"),
    "ING-5": ("tests/faults/lab/test_guest_consoles.py", "tests/road/test_console_load.py"),
}


def count(full: int, usual_share: int = 10) -> int:
    """Return how often a test repeats its case: `full` times in `./dev torture`, otherwise `full` divided by
    `usual_share`.
    """
    return full if matrix.is_full() else full // usual_share


def seed() -> int:
    """Return the seed of the test run, and print it, because pytest shows the output of a failing test."""
    given = matrix.seed()
    print(f"seed {given}: {matrix.SEED}={given} repeats the workload")
    return given


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="./dev torture", description="run the tests of the promises with their full counts"
    )
    parser.add_argument("--seed", type=int, help="repeat the workload of another run")
    parser.add_argument(
        "--only", nargs="+", action="extend", choices=PROMISES, help="run only these promises"
    )
    options = parser.parse_args(arguments)
    promises = options.only or [*PROMISES]
    os.environ[matrix.FULL] = "full"
    if options.seed is not None:
        os.environ[matrix.SEED] = str(options.seed)
    tests = dict.fromkeys(test for promise in promises for test in PROMISES[promise])
    return int(pytest.main([*tests, "-v", "-s"], plugins=[RequestedPromises(promises)]))


class RequestedPromises:
    """Pytest plugin that passes the test paths of the requested promises to the plugin `tally`, which counts cases."""

    def __init__(self, promises: Sequence[str]) -> None:
        self._promises = promises

    def pytest_configure(self, config: pytest.Config) -> None:
        config.stash[PATHS] = {name: PROMISES[name] for name in self._promises}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
