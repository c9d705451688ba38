"""Agent settings of a node with the given slots, and defaults for all values that a test does not vary."""

from typing import Any, Final

from node_agent.settings import Settings

SLOT: Final[dict[str, Any]] = {"index": 0, "vcpus": 2, "memory_mib": 4096}


def settings(*slots: dict[str, Any], **further: Any) -> Settings:
    node = {"node_id": "lab-a", "api_url": "http://localhost", "slots": slots, **further}
    folders = ("enrolment_token_file", "state_folder", "run_folder", "images_folder")
    return Settings.model_validate({**node, **dict.fromkeys(folders, "/run/agent")})
