"""Execution of a plan: each step checks the halt flag, runs between two failpoints, and is logged."""

from collections.abc import Iterable

import structlog

from node_agent.host.slices import HostRefused, ImageUnusable, Step
from node_agent.runtime.halt import Halt
from node_agent.transport.progress import report_step
from tasks.failpoints import step_failpoint
from tasks.reasons import SliceFailureCode

log = structlog.get_logger(__name__)


class StepFailed(Exception):
    """The host refused a step of a plan; the message names the step. `code` is the failure code of a slice for which
    the plan was made.
    """

    def __init__(self, step: str, refusal: HostRefused) -> None:
        super().__init__(f"{step}: {refusal}")
        self.step = step
        self.code: SliceFailureCode = (
            "image_unusable" if isinstance(refusal, ImageUnusable) else "step_refused"
        )


def run_steps(steps: Iterable[Step], halt: Halt) -> None:
    """Run the steps of a plan in order. Completed steps are not reverted after an error.

    Raises `StepFailed`, `HostUnreadable`, `Halted`.
    """
    for step in steps:
        halt.check()
        report_step(step.name)
        step_failpoint(step.name, "before")
        try:
            step.run()
        except HostRefused as refusal:
            log.warning("reconcile_step_refused_by_host", step=step.name, reason=str(refusal))
            raise StepFailed(step.name, refusal) from refusal
        step_failpoint(step.name, "after")
        log.info("reconcile_step_done", step=step.name)
