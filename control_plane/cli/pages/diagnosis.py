"""Lines of `sliceplane doctor`."""

from typing import Final

from rich.text import Text

from control_plane.cli.diagnosis import Finding, Verdict

_COLOURS: Final = {
    Verdict.OK: "green",
    Verdict.WARNING: "yellow",
    Verdict.FAILED: "red",
    Verdict.SKIPPED: "dim",
}
_STATUS_WIDTH: Final = max(map(len, Verdict))
_NAME_WIDTH: Final = len("dispatcher")


def line(finding: Finding) -> Text:
    """Return the line of a finding, and below it what to do."""
    status = Text(f"{finding.status:<{_STATUS_WIDTH}}", _COLOURS[finding.status])
    text = Text.assemble(status, f"  {finding.name:<{_NAME_WIDTH}}  {finding.message}")
    if finding.advice and finding.status is not Verdict.OK:
        text.append("\n  > ", "cyan").append(finding.advice)
    return text
