"""`./dev torture [--seed N] [--only P11 ...]`: the promises at their full counts.

The tests are those of `./dev test`; there they run with a tenth of the count, and each run with another seed. Two
variables tell them otherwise, so that any way of starting pytest can: SLICEPLANE_TORTURE=full and
SLICEPLANE_TORTURE_SEED. A test that fails shows the seed of its run; the same seed gives the same workload, though not
the same interleaving. At the end stands what was planned, run and skipped of each promise; fewer run than planned is a
failure.
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
    "P1": ("tests/faults/test_killed_at_failpoints.py", "tests/faults/test_killed_beside.py"),
    "P2": ("tests/faults/test_killed_programs.py",),
    "P3": ("tests/faults/test_killed_programs.py",),
    "P4": ("tests/faults/test_bad_links.py", "tests/faults/test_bad_lines.py"),
    "P5": ("tests/agent/test_duplicates.py", "tests/agent/test_payloads.py"),
    "P6": ("tests/faults/test_redis_lost.py", "tests/faults/test_bad_lines.py"),
    "P7": ("tests/faults/test_redelivery.py", "tests/queue/test_recovery.py"),
    "P8": ("tests/faults/test_clocks.py",),
    "P9": ("tests/road/test_identity.py",),
    "P11": ("tests/ledger/test_no_event_is_skipped.py",),
    "P12": ("tests/projections/test_histories.py", "tests/golden"),
    "P14": ("tests/ledger/test_roles.py",),
    "P15": ("tests/api/test_watch_faults.py",),
    "P16": (
        "tests/agent/test_cycles.py",
        "tests/agent/test_planted.py",
        "tests/agent/test_release_cuts.py",
        "tests/contract/network/test_dhcp_cycles.py",
    ),
    "P17": ("tests/agent/test_drift.py",),
    "P18": (
        "tests/contract/network/test_attacks.py",
        "tests/contract/network/test_frames.py",
        "tests/contract/network/test_ingress_frames.py",
        "tests/contract/network/test_representor_frames.py",
    ),
    "P19": (
        "tests/contract/network/test_closed_on_failure.py",
        "tests/contract/network/test_switch_restart.py",
        "tests/agent/test_real_node.py",
        "tests/agent/test_restart_leaks.py",
    ),
    "P20": (
        "tests/queue/test_neighbours.py",
        "tests/queue/test_rights.py",
        "tests/queue/test_signing.py",
        "tests/queue/test_hoarding.py",
        "tests/dispatch/test_queue_watch.py",
    ),
    "P26": (
        "tests/agent/test_resync.py",
        "tests/agent/test_reboot.py",
        "tests/up/test_up.py::test_after_everything_was_killed_the_next_up_has_its_slice_active_again",
        "tests/up/test_up.py::test_a_node_that_dies_is_started_again_and_its_slice_with_it",
    ),
    "P29": ("tests/faults/test_stopped_appender.py",),
}


def count(full: int) -> int:
    """How much of a promise's count is asked for: all of it, or a tenth."""
    return full if matrix.is_full() else full // 10


def seed() -> int:
    """The seed of the run; printed, which pytest shows when the test fails."""
    given = matrix.seed()
    print(f"seed {given}: {matrix.SEED}={given} repeats the workload")
    return given


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="./dev torture", description="the promises at their full counts")
    parser.add_argument("--seed", type=int, help="repeat the workload of another run")
    parser.add_argument("--only", nargs="+", action="extend", choices=PROMISES, help="these promises")
    asked = parser.parse_args(arguments)
    promises = asked.only or [*PROMISES]
    os.environ[matrix.FULL] = "full"
    if asked.seed is not None:
        os.environ[matrix.SEED] = str(asked.seed)
    tests = dict.fromkeys(test for promise in promises for test in PROMISES[promise])
    return int(pytest.main([*tests, "-v", "-s"], plugins=[Asked(promises)]))


class Asked:
    """Tells the tally which tests are which promise's."""

    def __init__(self, promises: Sequence[str]) -> None:
        self._promises = promises

    def pytest_configure(self, config: pytest.Config) -> None:
        config.stash[PATHS] = {name: PROMISES[name] for name in self._promises}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
