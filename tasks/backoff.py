"""How long to wait before trying again: doubling, capped, and spread so that a fleet does not return in step."""

import random
from dataclasses import dataclass


@dataclass(slots=True)
class Backoff:
    """Seconds; each wait is drawn from the upper half of what doubling allows."""

    first: float = 0.25
    cap: float = 15.0
    _tries: int = 0

    def next(self) -> float:
        # The exponent is bounded too: an outage of days would overflow the float otherwise.
        ceiling = min(self.cap, self.first * 2.0 ** min(self._tries, 30))
        self._tries += 1
        return random.uniform(ceiling / 2, ceiling)  # noqa: S311 (spread, not secrecy)

    def reset(self) -> None:
        self._tries = 0
