"""Measurements of the fleet benchmark; each round is a fleet of one size."""

from collections.abc import Iterator, Sequence

from bench.harness.measure import Measurement, Round, percentile


def results(rounds: Sequence[Round]) -> tuple[Measurement, ...]:
    """Return the measurements of the largest fleet, and `fleet.scaling`: its cost divided by the smallest fleet's."""
    small, large = (pick(rounds, key=lambda each: each["nodes"][0]) for pick in (min, max))
    cost = {name: each["cost"][0] * 1000 for name, each in (("small", small), ("large", large))}
    memory = sum(large[series][0] for series in _series(large, "memory."))
    return (
        # The exact number, without rounding: each allocation counts.
        Measurement("fleet.completed", large["completed"][0], "allocations"),
        percentile("fleet.active_p50_s", [large], "active", "s", 50),
        percentile("fleet.active_p95_s", [large], "active", "s", 95),
        percentile("fleet.released_p50_s", [large], "released", "s", 50),
        percentile("fleet.released_p95_s", [large], "released", "s", 95),
        Measurement("fleet.rate", _rounded(large["completed"][0] / sum(large["creating"])), "1/s"),
        Measurement("fleet.memory_mib", _rounded(memory / 2**20), "MiB"),
        Measurement("fleet.cost_ms", _rounded(cost["large"]), "ms"),
        Measurement(
            "fleet.scaling", _rounded(cost["large"] / cost["small"]), "ratio", _rounded(cost["small"])
        ),
    )


def details(found: Round) -> Iterator[Measurement]:
    """Yield all other measurements of a round, by program, to show where costs come from."""
    for series in _series(found, "cost."):
        yield Measurement(series, _rounded(found[series][0] * 1000), "ms per allocation")
    for series in _series(found, "idle"):
        yield Measurement(series, _rounded(found[series][0]), "cores")
    for series in _series(found, "memory."):
        yield Measurement(series, _rounded(found[series][0] / 2**20), "MiB")
    yield Measurement("wall", _rounded(found["wall"][0] * 1000), "ms per allocation")


def _series(found: Round, prefix: str) -> list[str]:
    return [series for series in found if series.startswith(prefix)]


def _rounded(number: float) -> float:
    """Round a number to four significant digits, like all measurements."""
    return float(f"{number:.4g}")
