"""`python -m deploy.checks.openapi [--write]`: compare the API with its last released OpenAPI document.

docs/openapi.json is the document of the last release. The check fails if the API has a change that can break a client
of that release; additions pass. `--write` replaces the document, for a release, and prints the breaking changes.
"""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from control_plane.api.app import openapi_document
from deploy.checks.compatibility import breaking_changes
from deploy.setup.repository import ROOT

RELEASED: Final = ROOT / "docs" / "openapi.json"


def main(arguments: Sequence[str], path: Path = RELEASED) -> int:
    """Print the breaking changes. Return 1 if there is one and the document is not replaced, 2 for wrong usage."""
    if [*arguments] not in ([], ["--write"]):
        sys.stderr.write("usage: ./dev openapi, or ./dev check openapi\n")
        return 2
    document = openapi_document()
    found = breaking_changes(_read(path), document)
    sys.stderr.writelines(f"{each}\n" for each in found)
    if arguments:
        path.write_text(text_of(document), encoding="utf-8")
        return 0
    if found:
        sys.stderr.write(
            f"{len(found)} changes can break clients of the last release ({path.name}); make them compatible, or accept"
            " them for the next release with ./dev openapi\n"
        )
    return 1 if found else 0


def text_of(document: dict[str, Any]) -> str:
    """Return an OpenAPI document as the JSON text that docs/openapi.json contains."""
    return json.dumps(document, indent=1, sort_keys=True, ensure_ascii=False) + "\n"


def _read(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return found


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
