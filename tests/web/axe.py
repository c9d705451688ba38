"""The rules of axe (WCAG 2.2), applied to a page in Chromium."""

from pathlib import Path
from typing import Final

from playwright.sync_api import Page

_RUN: Final = (
    "async () => (await axe.run()).violations.map(v => `${v.id}: ${v.nodes.map(n => n.html).join(' | ')}`)"
)


def violations(page: Page, packages: Path) -> list[str]:
    """Return the rules that a page violates, with the elements. `packages` is the folder of the npm packages."""
    # Evaluated by the debugger, to which the policy of the page does not apply.
    page.evaluate((packages / "axe-core/axe.min.js").read_text())
    found: list[str] = page.evaluate(_RUN)
    return found
