"""`python -m deploy.checks.event_catalogue [--write]`: compare docs/events.md with the code, or generate it."""

import sys
from typing import Final

from deploy.catalogue.page import page
from deploy.checks.generated import check_or_write
from deploy.setup.repository import ROOT

PAGE: Final = ROOT / "docs" / "events.md"

if __name__ == "__main__":
    sys.exit(check_or_write(PAGE, lambda: page().text(), "events", sys.argv[1:]))
