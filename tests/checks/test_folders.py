"""No folder of the repository has too many modules for a reader to survey."""

from collections import Counter

from tests.checks.files import ROOT, python_files

MAX_MODULES = 25


def test_no_folder_has_more_modules_than_the_limit() -> None:
    modules = Counter(path.parent for path in python_files() if path.name != "__init__.py")
    crowded = {
        str(folder.relative_to(ROOT)): count for folder, count in modules.items() if count > MAX_MODULES
    }
    assert crowded == {}
