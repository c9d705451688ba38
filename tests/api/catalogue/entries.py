"""Entries of the catalogue for tests: a content for each kind, changes to it, and a request that creates an entry."""

from typing import Any, Final
from uuid import uuid4

import httpx

CONTENTS: Final[dict[str, dict[str, Any]]] = {
    "skus": {"vcpus": 2, "memory_mib": 512},
    "images": {
        "format": "qcow2",
        "digest": f"sha256:{'0' * 64}",
        "size_bytes": 2**30,
        "firmware": "uefi",
        "minimum_disk_gib": 4,
    },
    "app-profiles": {"description": "Training", "fabrics": ["ib", "roce"]},
}
"""Content of an entry of each kind, by the path of the kind."""
CHANGES: Final[dict[str, dict[str, Any]]] = {
    "skus": {"memory_mib": 1024, "max_lease_seconds": 86400},
    "images": {"minimum_disk_gib": 8},
    "app-profiles": {"fabrics": ["roce"]},
}
"""Changed fields of a further version of each entry in `CONTENTS`."""
KINDS: Final = sorted(CONTENTS)


def new_name() -> str:
    return f"x{uuid4().hex[:12]}"


def create(client: httpx.Client, path: str, **changes: object) -> dict[str, Any]:
    """Create an entry with a new name and the content in `CONTENTS`, changed by `changes`, and return its view."""
    answer = client.post(f"/{path}", json={"name": new_name(), **CONTENTS[path], **changes})
    assert answer.status_code == 201, answer.text
    return dict(answer.json())
