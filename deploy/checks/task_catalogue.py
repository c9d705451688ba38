"""`python -m deploy.checks.task_catalogue [--write]`: compare docs/tasks.md with the code, or generate it."""

import sys
from typing import Final

from deploy.catalogue.tasks_page import tasks_page
from deploy.checks.generated import check_or_write
from deploy.setup.repository import ROOT

PAGE: Final = ROOT / "docs" / "tasks.md"

if __name__ == "__main__":
    sys.exit(check_or_write(PAGE, lambda: tasks_page().text(), "tasks", sys.argv[1:]))
