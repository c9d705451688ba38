"""`./dev bench NAME [--json] [--resume]`: measure, and print what was found.

Progress goes to standard error; standard output gets a table, or with --json one object a line. Exit codes: 0
measured, 2 for an unknown name, 130 (143) when interrupted by Ctrl-C (SIGTERM), with the finished rounds kept.
"""

import argparse
import asyncio
import signal
import sys
from collections.abc import Sequence
from typing import Final

import msgspec

from bench import (
    append,
    boot,
    dispatch,
    drift,
    fleet,
    interference,
    node,
    rebuild,
    redelivery,
    replay,
    resync,
    watch,
)
from bench.measure import Bench, Measurement, say
from bench.rounds import KeptRounds, kept_file, take_rounds

BENCHES: Final[dict[str, Bench]] = {
    each.name: each
    for each in (
        append.BENCH,
        boot.BENCH,
        dispatch.BENCH,
        drift.BENCH,
        fleet.BENCH,
        interference.BENCH,
        node.BENCH,
        rebuild.BENCH,
        redelivery.BENCH,
        replay.BENCH,
        resync.BENCH,
        watch.BENCH,
    )
}
_UNKNOWN = 2


def main(arguments: Sequence[str]) -> int:
    asked = _parser().parse_args(arguments)
    bench = BENCHES.get(asked.name)
    if bench is None:
        sys.stderr.write(f"There is no bench {asked.name!r}. There are:\n{_listed()}\n")
        return _UNKNOWN
    kept = KeptRounds(kept_file(bench.name), bench.shape)
    try:
        found = asyncio.run(_measured(bench, kept, resume=asked.resume))
    except KeyboardInterrupt:
        return _interrupted(bench, kept, signal.SIGINT)
    except asyncio.CancelledError:
        return _interrupted(bench, kept, signal.SIGTERM)
    sys.stdout.write(lines(found) if asked.json else table(found))
    return 0


async def _measured(bench: Bench, kept: KeptRounds, *, resume: bool) -> tuple[Measurement, ...]:
    me = asyncio.current_task()
    assert me is not None
    # asyncio turns Ctrl-C into a cancellation by itself; with this, a SIGTERM stops the servers in order too.
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, me.cancel)
    return bench.results(await take_rounds(bench, kept, resume=resume, say=say))


def lines(found: Sequence[Measurement]) -> str:
    """One JSON object a line."""
    return "".join(msgspec.json.encode(each).decode() + "\n" for each in found)


def table(found: Sequence[Measurement]) -> str:
    """The same for people."""
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
        description="Measures on real servers in a temporary folder.",
        epilog=f"benches:\n{_listed()}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("name", metavar="NAME", help="what to measure, the first part of the metrics' names")
    parser.add_argument("--json", action="store_true", help="print one JSON object a line")
    parser.add_argument("--resume", action="store_true", help="go on with the rounds of an interrupted run")
    return parser


def _listed() -> str:
    return "\n".join(f"  {each.name:<12} {each.explanation}" for each in BENCHES.values())


def _interrupted(bench: Bench, kept: KeptRounds, by: signal.Signals) -> int:
    done = len(kept.load())
    say(f"\ninterrupted; {done} of {bench.rounds} rounds are kept: ./dev bench {bench.name} --resume\n")
    return 128 + by


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
