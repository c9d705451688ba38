"""Client of the control plane that always sends the same credential."""

from dataclasses import dataclass
from pathlib import Path

from node_agent.settings import Settings
from node_agent.transport.client import ControlPlane
from tests.agent.orders import NODE


@dataclass(frozen=True)
class OneCredential:
    """A `node_agent.transport.client.Credentials` that cannot be renewed."""

    bearer: str

    def renew_if_unchanged(self, bearer: str) -> bool:
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
