"""Bounds of fields in messages between the control plane and nodes, and in bodies of requests.

Pydantic applies the bounds of a field before those of its type, and of two bounds of the same kind the later one
counts: `Count = Field(ge=1)` accepts 0, because `Count` has `ge=0`.
"""

import pkgutil
from collections.abc import Iterator
from importlib import import_module
from types import ModuleType
from typing import Any, Final

import pytest
from pydantic import BaseModel, ValidationError

import tasks
from control_plane.api.catalogue import bodies as catalogue_bodies
from control_plane.api.requests import bodies
from tasks.agent_api import Progress
from tasks.reports import FoundSlot

STRICTEST: Final[dict[str, Any]] = {
    "ge": max,
    "gt": max,
    "min_length": max,
    "le": min,
    "lt": min,
    "max_length": min,
}
SLOT: Final = {"index": 0, "vcpus": 1, "memory_mib": 96, "network_device": "slice0"}


def modules() -> Iterator[ModuleType]:
    yield from (import_module(f"tasks.{each.name}") for each in pkgutil.iter_modules(tasks.__path__))
    yield from (bodies, catalogue_bodies)


def weakened() -> Iterator[str]:
    """Yield each field with a bound that is wider than another bound of the same kind that the field has."""
    for module in modules():
        for model in vars(module).values():
            if isinstance(model, type) and issubclass(model, BaseModel):
                for name, field in model.model_fields.items():
                    for kind, strictest in STRICTEST.items():
                        bounds = [getattr(each, kind) for each in field.metadata if hasattr(each, kind)]
                        if bounds and bounds[-1] != strictest(bounds):
                            yield f"{model.__module__}.{model.__qualname__}.{name}: {kind} {bounds}"


def test_no_field_of_a_message_or_body_has_a_bound_that_its_type_widens() -> None:
    assert sorted(set(weakened())) == []


@pytest.mark.parametrize("field", ["vcpus", "memory_mib"])
def test_description_of_a_slot_without_processors_or_memory_is_refused(field: str) -> None:
    FoundSlot.model_validate(SLOT)
    with pytest.raises(ValidationError, match="greater than or equal to 1"):
        FoundSlot.model_validate({**SLOT, field: 0})


def test_steps_of_a_task_are_numbered_from_1() -> None:
    shown = {"order_id": "0195a1fc-0000-7000-8000-000000000000", "step": "machine.start", "number": 0}
    with pytest.raises(ValidationError, match="greater than or equal to 1"):
        Progress.model_validate(shown)
