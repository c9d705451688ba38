"""`python -m deploy.checks.names [--write]`: compare docs/names/ and docs/codes.md with the code, or generate them."""

import sys
from collections.abc import Sequence
from functools import partial
from typing import Final

from deploy.catalogue import codes_page, names
from deploy.checks.generated import check_or_write
from deploy.setup.repository import ROOT

FOLDER: Final = ROOT / "docs" / "names"


def main(arguments: Sequence[str]) -> int:
    """Print how docs/names/ and docs/codes.md differ from the code. Return 1 if any of them differs."""
    results = [
        check_or_write(FOLDER / f"{name}.txt", partial(names.text_of, name), "names", [*arguments])
        for name in names.LISTS
    ]
    return max(*results, check_or_write(ROOT / "docs" / "codes.md", codes_page.text, "names", [*arguments]))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
