"""Paths in this checkout that the set-up reads and writes.

requirements/*.lock      exact versions and hashes of the packages to install
.venvs/<key>/            one environment per content of the locks; complete if it contains the stamp file
.venv                    link to the environment in use; replaced atomically when another environment is complete
control_plane/web/static/packages/
                         packages that the web console serves to browsers
"""

from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
LOCKS: Final = ROOT / "requirements"
ENVIRONMENTS: Final = ROOT / ".venvs"
ENVIRONMENT: Final = ROOT / ".venv"
BROWSER_PACKAGES: Final = ROOT / "control_plane" / "web" / "static" / "packages"
LOG: Final = ENVIRONMENTS / "setup.log"
