"""Benchmarks and their results: rounds of raw numbers, and measurements computed from them.

A round holds the raw numbers of all sides that are compared, taken alternately within seconds. A ratio is computed
within each round, and the result is the median over the rounds: a machine's speed drifts, and the drift affects both
sides.
"""

import math
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from statistics import median
from typing import NamedTuple, Protocol

import msgspec

Round = Mapping[str, Sequence[float]]
"""Numbers by series name, in the units of the benchmark."""


class Measurement(msgspec.Struct, frozen=True, omit_defaults=True):
    """One result of a benchmark, a line of its output. For a ratio, `baseline` is the median of the divisor."""

    metric: str
    value: float
    unit: str
    baseline: float | None = None


class Progress(Protocol):
    """Callback that receives the finished fraction of a round, from 0 to 1."""

    def __call__(self, done: float) -> None: ...


TakeRound = Callable[[int, Progress], Awaitable[Round]]


@dataclass(frozen=True, slots=True)
class Bench:
    """A benchmark. `running` starts its servers and yields the function that takes round k (from 0).

    `shape` names everything that two rounds must share to be comparable; `--resume` continues only after rounds with
    the same shape.
    """

    name: str
    explanation: str
    shape: str
    rounds: int
    running: Callable[[], AbstractAsyncContextManager[TakeRound]]
    results: Callable[[Sequence[Round]], tuple[Measurement, ...]]


class Pair(NamedTuple):
    """Names of two series of rates that are compared: Sliceplane's series, and the baseline's."""

    ours: str
    baseline: str


def ratio(metric: str, rounds: Sequence[Round], pair: Pair) -> Measurement:
    """Return the median over all rounds of the ratio of two series; within a round, divide the series' medians."""
    baselines = [median(each[pair.baseline]) for each in rounds]
    ratios = [median(each[pair.ours]) / base for each, base in zip(rounds, baselines, strict=True)]
    return Measurement(metric, rounded(median(ratios)), "ratio", rounded(median(baselines)))


def pooled_median(metric: str, rounds: Sequence[Round], series: str, unit: str) -> Measurement:
    """Return the median of all numbers that a series has in all rounds."""
    return Measurement(metric, rounded(median(pooled(rounds, series))), unit)


def percentile(metric: str, rounds: Sequence[Round], series: str, unit: str, percent: float) -> Measurement:
    """Return the smallest number of the series that at least `percent` of its numbers do not exceed (nearest rank)."""
    ordered = sorted(pooled(rounds, series))
    rank = max(1, math.ceil(len(ordered) * percent / 100))
    return Measurement(metric, rounded(ordered[rank - 1]), unit)


def pooled(rounds: Sequence[Round], series: str) -> list[float]:
    return [number for each in rounds for number in each[series]]


def rounded(number: float) -> float:
    """Round a number to four significant digits; more would be noise."""
    return float(f"{number:.4g}")


def show(text: str) -> None:
    """Print progress to standard error; standard output is for measurements."""
    sys.stderr.write(text)
    sys.stderr.flush()
