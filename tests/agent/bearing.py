"""A client of the control plane that shows one credential, and has no other."""

from dataclasses import dataclass
from pathlib import Path

from node_agent.client import ControlPlane
from node_agent.settings import Settings
from tests.agent.orders import NODE


@dataclass(frozen=True)
class OneCredential:
    """`node_agent.client.Credentials` that cannot be renewed."""

    bearer: str

    def renew_if_still(self, bearer: str) -> bool:
        return False


def client_of(url: str, credential: str) -> ControlPlane:
    settings = Settings.model_validate(
        {
            "node_id": NODE,
            "api_url": url,
            **dict.fromkeys(
                ("enrolment_token_file", "state_folder", "run_folder", "images_folder"), Path("nowhere")
            ),
            "slots": [{"index": 0, "vcpus": 1, "memory_mib": 96}],
        }
    )
    return ControlPlane(settings, OneCredential(f"{NODE}:{credential}"))
