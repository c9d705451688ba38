"""`python -m deploy.checks.drift_catalogue [--write]`: compare docs/drift.md with the code, or generate it."""

import sys
from typing import Final

from deploy.catalogue.drift_page import drift_page
from deploy.checks.generated import check_or_write
from deploy.setup.repository import ROOT

PAGE: Final = ROOT / "docs" / "drift.md"

if __name__ == "__main__":
    sys.exit(check_or_write(PAGE, drift_page, "drift", sys.argv[1:]))
