"""`./dev bench NAME [--json] [--resume]`: run a benchmark and print its measurements.

Progress is printed on standard error; standard output gets a table, or with --json one JSON object per line. Exit
codes: 0 success, 2 unknown name, 130 interrupted by Ctrl-C, 143 ended by SIGTERM. An interrupted run keeps its finished
rounds.
"""

import argparse
import asyncio
import signal
import sys
from collections.abc import Sequence
from typing import Final

import msgspec
import uvloop

from bench.access import access
from bench.allocate import allocate, console, listing
from bench.audit import audit
from bench.dispatch import dispatch, redelivery
from bench.fleet import fleet, resync
from bench.harness.helper import personal_key
from bench.harness.measure import Bench, Measurement, show
from bench.harness.rounds import KeptRounds, kept_file, take_rounds
from bench.ledger import append, rebuild, replay
from bench.nodes import boot, drift, interference, node
from bench.placement import placement
from bench.watch import watch

BENCHES: Final[dict[str, Bench]] = {
    each.name: each
    for each in (
        access.BENCH,
        allocate.BENCH,
        append.BENCH,
        audit.BENCH,
        boot.BENCH,
        console.BENCH,
        dispatch.BENCH,
        drift.BENCH,
        fleet.BENCH,
        interference.BENCH,
        listing.BENCH,
        node.BENCH,
        placement.BENCH,
        rebuild.BENCH,
        redelivery.BENCH,
        replay.BENCH,
        resync.BENCH,
        watch.BENCH,
    )
}
_UNKNOWN_NAME = 2


def main(arguments: Sequence[str]) -> int:
    options = _parser().parse_args(arguments)
    bench = BENCHES.get(options.name)
    if bench is None:
        sys.stderr.write(f"unknown benchmark {options.name!r}; choose one of:\n{_listed()}\n")
        return _UNKNOWN_NAME
    kept = KeptRounds(kept_file(bench.name), bench.shape)
    with personal_key():
        return _run(bench, kept, options)


def _run(bench: Bench, kept: KeptRounds, options: argparse.Namespace) -> int:
    try:
        # The event loop of the programs of the control plane.
        found = uvloop.run(_measure(bench, kept, resume=options.resume))
    except KeyboardInterrupt:
        return _interrupted(bench, kept, signal.SIGINT)
    except asyncio.CancelledError:
        return _interrupted(bench, kept, signal.SIGTERM)
    sys.stdout.write(lines(found) if options.json else table(found))
    return 0


async def _measure(bench: Bench, kept: KeptRounds, *, resume: bool) -> tuple[Measurement, ...]:
    task = asyncio.current_task()
    assert task is not None
    # asyncio converts Ctrl-C into a cancellation; this handler does the same for SIGTERM, so that servers stop in
    # order.
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    return bench.results(await take_rounds(bench, kept, resume=resume, show=show))


def lines(found: Sequence[Measurement]) -> str:
    """Return the measurements as text, with one JSON object per line."""
    return "".join(msgspec.json.encode(each).decode() + "\n" for each in found)


def table(found: Sequence[Measurement]) -> str:
    """Return the measurements as a table with aligned columns."""
    rows = [("metric", "value", "unit", "baseline"), *(_cells(each) for each in found)]
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    return "".join(
        f"{row[0]:<{widths[0]}}  {row[1]:>{widths[1]}}  {row[2]:<{widths[2]}}  {row[3]:>{widths[3]}}".rstrip()
        + "\n"
        for row in rows
    )


def _cells(found: Measurement) -> tuple[str, str, str, str]:
    baseline = "" if found.baseline is None else f"{found.baseline:,g}"
    return found.metric, f"{found.value:,g}", found.unit, baseline


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="./dev bench",
        description="Runs a benchmark on servers that it starts itself, with their data in a temporary folder.",
        epilog=f"benchmarks:\n{_listed()}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "name", metavar="NAME", help="name of the benchmark; the names of its metrics begin with it"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object per line")
    parser.add_argument(
        "--resume", action="store_true", help="continue an interrupted run after its finished rounds"
    )
    return parser


def _listed() -> str:
    return "\n".join(f"  {each.name:<12} {each.explanation}" for each in BENCHES.values())


def _interrupted(bench: Bench, kept: KeptRounds, by: signal.Signals) -> int:
    done = len(kept.load())
    show(
        f"\ninterrupted; {done} of {bench.rounds} rounds are kept. Continue with ./dev bench {bench.name} --resume\n"
    )
    return 128 + by


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
