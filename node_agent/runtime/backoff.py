"""Delays between retries: exponential, capped, and randomized so that the nodes of a fleet do not retry in step."""

import random
from dataclasses import dataclass


@dataclass(slots=True)
class Backoff:
    """Exponential backoff in seconds. The limit doubles with each retry up to `cap`, and each delay is drawn at random
    between half the limit and the limit.
    """

    first: float = 0.25
    cap: float = 15.0
    _tries: int = 0

    def next(self) -> float:
        # Limit the exponent too: otherwise an outage of days would overflow the float.
        ceiling = min(self.cap, self.first * 2.0 ** min(self._tries, 30))
        self._tries += 1
        return random.uniform(ceiling / 2, ceiling)  # noqa: S311 (spreads retries; not a secret)

    def reset(self) -> None:
        self._tries = 0
