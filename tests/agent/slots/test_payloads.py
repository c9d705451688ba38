"""A payload has no effect unless it is a complete, valid task: 10,000 altered payloads of each type (TSK-1).

The tests alter either random bytes of the golden JSON under a valid signature, or the signed text itself. An altered
text that the Pydantic models still accept as a task of its kind is not used.
"""

import json
import random
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, Final
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from tasks.catalogue import CATALOGUE, TYPES, is_order
from tasks.operations import Operation
from tasks.orders import Order
from tasks.reports import OperationFailed, OrderRefused, ReportBody
from tests import matrix
from tests.agent.entrance import Copy, Entrance, signed_bytes
from tests.golden.test_wire import TASKS
from tests.torture import seed

DELIVERIES: Final = 10_000 if matrix.is_full() else 200
"""Number of altered payloads of each task type that a test delivers."""
EXAMPLES: Final = 200 if matrix.is_full() else 40
KINDS: Final = [type_.kind for type_ in TYPES]
_ORDER: Final = TypeAdapter(Order)
_OPERATION: Final = TypeAdapter(Operation)
_VALUES: Final[tuple[object, ...]] = (
    *(None, True, -1, 0, 2**63, 1e308, "", "x" * 3000, "\x00", "../../etc/passwd", "; rm -rf /", "\ud800"),
    *([], {}, [[[]]], {"$ref": "#"}, ["a"] * 100),
)
_BYTES: Final = (
    b"",
    b"\x00",
    b"\xff\xfe",
    b"{",
    b"}",
    b"[",
    b'"',
    b"\\",
    b",",
    b"1e999",
    b"null",
    b"\\ud800",
)


def golden(kind: str) -> dict[str, Any]:
    task: dict[str, Any] = TASKS[f"{kind}/{CATALOGUE[kind].version}"]
    return task


def id_in(kind: str) -> UUID:
    return UUID(golden(kind)["order_id" if is_order(kind) else "operation_id"])


def codes_of(bodies: list[ReportBody]) -> list[str]:
    return [end.reason.code for end in bodies if isinstance(end, OrderRefused | OperationFailed)]


@pytest.fixture(scope="module", name="entrance")
def _entrance(tmp_path_factory: pytest.TempPathFactory) -> Entrance:
    return Entrance(tmp_path_factory.mktemp("node"))


@pytest.fixture
def node(entrance: Entrance) -> Entrance:
    """Agent core that all tests share, after the reports of earlier tests were removed."""
    entrance.take_reports()
    return entrance


def is_valid_task(kind: str, text: bytes) -> bool:
    """Return whether the Pydantic models accept `text` as a task of `kind`. The agent's own parser is not used."""
    try:
        task = (_ORDER if is_order(kind) else _OPERATION).validate_json(text)
    except ValidationError:
        return False
    return task.body.kind == kind


def with_bytes_altered(text: bytes, dice: random.Random) -> bytes:
    altered = bytearray(text)
    for _ in range(dice.randint(1, 4)):
        at = dice.randrange(len(altered) + 1)
        match dice.randrange(4):
            case 0:
                altered[at : at + dice.randint(1, 40)] = b""
            case 1:
                altered[at:at] = dice.choice(_BYTES)
            case 2:
                altered[at : at + 1] = bytes([dice.randrange(256)])
            case _:
                altered[at:at] = altered[: dice.randint(1, 200)]
    return bytes(altered)


def with_a_value_altered(task: dict[str, Any], dice: random.Random) -> bytes:
    """Return the task with one field at a random depth removed, renamed or set to another value."""
    altered = json.loads(json.dumps(task))
    holder = dice.choice(list(_objects(altered)))
    name = dice.choice(list(holder))
    match dice.randrange(3):
        case 0:
            del holder[name]
        case 1:
            holder[f"{name}_"] = holder.pop(name)
        case _:
            holder[name] = dice.choice(_VALUES)
    return json.dumps(altered).encode()


def with_a_field_added(task: dict[str, Any], dice: random.Random) -> bytes:
    """Return the task with an unknown field added at a random depth; the result is never a valid task."""
    altered = json.loads(json.dumps(task))
    holder = dice.choice(list(_objects(altered)))
    holder[dice.choice(("shell", "command", "__class__", "eta"))] = dice.choice(_VALUES)
    return json.dumps(altered).encode()


def _objects(value: object) -> Iterator[dict[str, Any]]:
    if isinstance(value, dict):
        yield value
        for each in value.values():
            yield from _objects(each)


def altered_texts(kind: str, dice: random.Random) -> Iterator[bytes]:
    """Yield altered task texts that are not a valid task of this kind, endlessly."""
    task = golden(kind)
    text = json.dumps(task).encode()
    alterations: tuple[Callable[[], bytes], ...] = (
        lambda: with_bytes_altered(text, dice),
        lambda: with_a_value_altered(task, dice),
    )
    while True:
        made = dice.choice(alterations)()
        if not is_valid_task(kind, made):
            yield made
        yield with_a_field_added(task, dice)


@pytest.mark.parametrize("kind", KINDS)
def test_altered_task_text_has_no_effect_and_is_refused_with_a_reason(node: Entrance, kind: str) -> None:
    dice = random.Random(f"{seed()} {kind}")
    before, codes, texts = (node.snapshot(), node.fences()), Counter[str](), altered_texts(kind, dice)
    for _ in range(DELIVERIES):
        node.deliver(signed_bytes(id_in(kind), kind, next(texts)))
        codes.update(codes_of(node.take_reports()))
    assert (node.snapshot(), node.fences()) == before
    assert codes.keys() <= {"malformed", "oversized", "unsupported", "forged"}
    assert codes.total() == DELIVERIES, "each message must be reported once"


@pytest.mark.parametrize("kind", KINDS)
def test_altered_signed_text_has_no_effect_and_fails_verification(node: Entrance, kind: str) -> None:
    dice = random.Random(f"{seed()} {kind}")
    before, codes, delivered = (node.snapshot(), node.fences()), Counter[str](), 0
    payload = signed_bytes(id_in(kind), kind, json.dumps(golden(kind)).encode()).payload
    for _ in range(DELIVERIES // 10):
        other = with_bytes_altered(payload.encode(), dice).decode("utf-8", "replace")
        if other != payload:
            node.deliver(Copy(id_in(kind), kind, other))
            codes.update(codes_of(node.take_reports()))
            delivered += 1
    assert (node.snapshot(), node.fences()) == before
    assert codes.keys() <= {"forged", "unknown_key"}
    assert codes.total() == delivered, "each message must be reported once"


@settings(max_examples=EXAMPLES, deadline=None)
@given(kind=st.sampled_from(KINDS), text=st.binary(max_size=400) | st.text(max_size=400).map(str.encode))
def test_signed_random_bytes_have_no_effect(entrance: Entrance, kind: str, text: bytes) -> None:
    before = entrance.snapshot(), entrance.fences()
    entrance.deliver(signed_bytes(id_in(kind), kind, text))
    assert (entrance.snapshot(), entrance.fences()) == before


@settings(max_examples=EXAMPLES, deadline=None)
@given(kind=st.sampled_from(KINDS), payload=st.text(max_size=400))
def test_random_text_in_the_queue_has_no_effect(entrance: Entrance, kind: str, payload: str) -> None:
    before = entrance.snapshot(), entrance.fences()
    entrance.deliver(Copy(id_in(kind), kind, payload))
    assert (entrance.snapshot(), entrance.fences()) == before


@pytest.mark.parametrize("kind", KINDS)
def test_task_in_a_queue_message_for_another_kind_of_task_is_refused_as_forged(
    node: Entrance, kind: str
) -> None:
    before = node.snapshot(), node.fences()
    text = json.dumps(golden(kind)).encode()
    for other in KINDS:
        if other != kind:
            node.deliver(signed_bytes(id_in(kind), other, text))
    assert (node.snapshot(), node.fences()) == before
    assert codes_of(node.take_reports()) == ["forged"] * (len(KINDS) - 1)
