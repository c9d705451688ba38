"""The paths of this checkout that the set-up reads and makes.

requirements/*.lock      what is installed, to the hash
.venvs/<key>/            one environment per content of the locks; complete when it holds its stamp
.venv                    a link to the environment in use, changed in one step when another is complete
"""

from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
LOCKS: Final = ROOT / "requirements"
ENVIRONMENTS: Final = ROOT / ".venvs"
ENVIRONMENT: Final = ROOT / ".venv"
LOG: Final = ENVIRONMENTS / "setup.log"
