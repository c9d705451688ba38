"""Running a plan: each step between two failpoints, logged, and looked at by the halt flag before it begins."""

from collections.abc import Iterable

import structlog

from node_agent.halt import Halt
from node_agent.progress import tell_step
from node_agent.slices import HostRefused, Step
from tasks.failpoints import step_failpoint

log = structlog.get_logger(__name__)


class StepFailed(Exception):
    """The host refused a step; the message names it. The code of such a failure is `step_refused`."""

    def __init__(self, step: str, refusal: HostRefused) -> None:
        super().__init__(f"{step}: {refusal}")
        self.step = step


def run_steps(steps: Iterable[Step], halt: Halt) -> None:
    """Raises `StepFailed`, `HostUnreadable`, `Halted`; what ran before stays done."""
    for step in steps:
        halt.check()
        tell_step(step.name)
        step_failpoint(step.name, "before")
        try:
            step.run()
        except HostRefused as refusal:
            log.warning("step_refused", step=step.name, refusal=str(refusal))
            raise StepFailed(step.name, refusal) from refusal
        step_failpoint(step.name, "after")
        log.info("step_done", step=step.name)
