"""Names, slots and configuration files of the two nodes of an embedded Sliceplane."""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from deploy.embedded.layout import Layout, write_private, write_private_text

NODES: Final = ("lab-a", "lab-b")
SLOTS: Final = (
    {"index": 0, "vcpus": 1, "memory_mib": 96},
    {"index": 1, "vcpus": 1, "memory_mib": 96},
)


def host_file(layout: Layout, name: str) -> Path:
    """Return the file in which a simulated host stores its state."""
    return layout.node(name) / "host.json"


def token_file(layout: Layout, name: str) -> Path:
    return layout.node(name) / "enrolment-token"


def write_configuration(
    layout: Layout, name: str, api_url: str, folder: Path, host: Mapping[str, object]
) -> Path:
    """Write the configuration file of a node's agent and return its path."""
    path = folder / "agent.json"
    write_private(
        path,
        {
            "node_id": name,
            "api_url": api_url,
            "ca_file": str(layout.ca_file),
            "enrolment_token_file": str(token_file(layout, name)),
            "state_folder": str(folder / "agent"),
            "run_folder": str(folder / "run"),
            "images_folder": str(layout.state / "images"),
            "slots": list(SLOTS),
            "log": "json",
            **host,
        },
    )
    return path


def write_token(layout: Layout, name: str, token: str) -> None:
    path = token_file(layout, name)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_private_text(path, token)
