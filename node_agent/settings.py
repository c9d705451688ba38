"""What the agent is told: one JSON file, read here and nowhere else, and refused whole if any of it is wrong."""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, ValidationError, model_validator

from events.values import SlotIndex
from node_agent.guests import Accelerator
from tasks.fields import InterfaceName, NodeId, Wire


class SettingsRefused(Exception):
    """The configuration file cannot be used; the message says which fields are wrong and why."""


class SlotSettings(Wire):
    """A place for one slice, and what it may use."""

    index: Annotated[SlotIndex, Field(ge=0, le=63)]
    vcpus: int = Field(ge=1, le=256)
    memory_mib: int = Field(ge=32)


class SimulatedHostSettings(Wire):
    """A host that exists in memory; `host_file` lets it outlive its agent."""

    boot_seconds: float = Field(default=0.3, ge=0)
    host_file: Path | None = None


class Settings(Wire):
    """`state_folder` must survive a reboot of the host, `run_folder` need not."""

    node_id: NodeId
    api_url: str = Field(pattern=r"^https?://")
    enrolment_token_file: Path
    state_folder: Path
    run_folder: Path
    images_folder: Path
    bridge: InterfaceName = "br-slice"
    uplink: InterfaceName = "uplink0"
    datapath_type: Literal["system", "netdev"] = "system"
    libvirt_uri: str = "qemu:///system"
    ovs_folder: Path = Path("/run/openvswitch")
    accelerator: Accelerator = "qemu"
    slots: tuple[SlotSettings, ...] = Field(min_length=1, max_length=64)
    survey_seconds: float = Field(default=15, gt=0)
    heartbeat_seconds: float = Field(default=5, gt=0)
    log: Literal["console", "json"] = "json"
    simulated: SimulatedHostSettings | None = None

    @model_validator(mode="after")
    def _slots_differ(self) -> "Settings":
        if len({slot.index for slot in self.slots}) < len(self.slots):
            raise ValueError("two slots have the same index")
        return self


def read_settings(path: Path) -> Settings:
    """Raises `SettingsRefused`."""
    try:
        return Settings.model_validate_json(path.read_bytes())
    except OSError as error:
        raise SettingsRefused(f"{path}: {error.strerror}") from error
    except ValidationError as error:
        wrong = "; ".join(f"{'.'.join(map(str, e['loc'])) or 'file'}: {e['msg']}" for e in error.errors())
        raise SettingsRefused(f"{path}: {wrong}") from error
