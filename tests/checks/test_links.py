"""Tests that the links of the documentation lead to files and headings that exist."""

import re
from collections.abc import Iterator
from pathlib import Path

from tests.checks.files import ROOT

_LINK = re.compile(r"\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)
_CODE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)


def without_code(page: Path) -> str:
    return _CODE.sub("", page.read_text())


def anchors_of(page: Path) -> set[str]:
    """Return the anchors of the headings of a page, as GitHub makes them."""
    texts = (
        re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", each).lower() for each in _HEADING.findall(without_code(page))
    )
    return {re.sub(r"[^\w\- ]", "", each).replace(" ", "-") for each in texts}


def broken_links(page: Path) -> Iterator[str]:
    for link in _LINK.findall(without_code(page)):
        if "://" in link:
            continue
        name, _, anchor = link.partition("#")
        target = page.parent / name if name else page
        if not target.exists() or (anchor and target.suffix == ".md" and anchor not in anchors_of(target)):
            yield f"{page.relative_to(ROOT)}: {link}"


def test_each_link_of_the_documentation_leads_to_a_file_or_a_heading() -> None:
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    assert [link for page in pages for link in broken_links(page)] == []
