"""Run a helper module of a benchmark in this process, with the master key of personal data that the benchmark created.

The environment variable `SLICEPLANE_PERSONAL_KEY_FILE` names the file; the programs of the control plane read it too.
"""

import os
import runpy
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from deploy.embedded.signing_key import ensure_personal_key
from events.ledger.personal import MasterKey
from events.ledger.project_keys import use_master_key

_VARIABLE: Final = "SLICEPLANE_PERSONAL_KEY_FILE"


@contextmanager
def personal_key() -> Iterator[None]:
    """Create a master key for the `with` block, which all processes of the benchmark use."""
    with tempfile.TemporaryDirectory(prefix="sp-bench-key-") as folder:
        os.environ[_VARIABLE] = str(ensure_personal_key(Path(folder) / "personal-key"))
        use_personal_key()
        yield


def use_personal_key() -> None:
    """Let this process encrypt and decrypt personal data with the benchmark's master key."""
    use_master_key(MasterKey.of_file(Path(os.environ[_VARIABLE])))


if __name__ == "__main__":
    use_personal_key()
    runpy.run_module(sys.argv.pop(1), run_name="__main__", alter_sys=True)
