"""Hostile texts that `test_in_chromium` does not have: evidence of drift, prerequisites, leftovers, the output of a
guest, the fault of an allocation, and the texts of service accounts, keys and sessions.
"""

import unicodedata
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from string import ascii_lowercase
from typing import Any, Final
from uuid import uuid4

from tests.api.access.principals import create_account, issue, session_of
from tests.api.node import batch, survey
from tests.api.nodes.test_serial_logs import LogSite
from tests.servers.plane import ADMIN_KEY, RunningPlane
from tests.web.hostile_texts import HOSTILE_TEXTS, not_shown
from tests.web.visitors import Visitor

_LINES: Final = [
    text for text in HOSTILE_TEXTS
    if not {unicodedata.category(each) for each in text} & {"Cc", "Cf", "Zl", "Zp"}
]  # fmt: skip
"""Texts that evidence of drift can have: one line without control characters."""
_OTHERS: Final = [each for each in HOSTILE_TEXTS if each not in _LINES]
_LABELS: Final = [each for each in HOSTILE_TEXTS if len(each) <= 100][:40]
"""Texts that are short enough for the label of a session, as many as one page of the sessions has rows for."""
_SEPARATOR: Final = " | "


def test_evidence_of_a_node_and_output_of_a_guest_run_and_break_no_page(
    visitor: Visitor, running_plane: RunningPlane
) -> None:
    site = LogSite(running_plane)
    allocation = f"/allocations/{site.allocation.id}"
    report = batch(str(uuid4()), (1, survey(missing=_OTHERS, drift=[*_drift()])))
    assert site.node.post("/reports", json=report).is_success
    assert not_shown(visitor.text_of("/nodes/n1"), HOSTILE_TEXTS) == []
    assert not_shown(visitor.text_of("/"), _LINES[:2]) == []
    assert not_shown(_serial_log(visitor, site), HOSTILE_TEXTS) == []

    with running_plane.client() as admin:
        assert admin.post(f"{allocation}/fault", json={"fault": HOSTILE_TEXTS[0]}).is_success
    site.allocation.report("slice.removal_incomplete", leftovers=HOSTILE_TEXTS)
    recorded = running_plane.rows(
        "select position from ledger.event where type = any(%(types)s)",
        types=["allocation.releasing", "allocation.slice_removal_incomplete"],
    )
    assert len(recorded) == 2
    shown = " ".join(visitor.text_of(f"/events/{position}") for (position,) in recorded)
    assert not_shown(shown, HOSTILE_TEXTS) == []
    for path in (allocation, f"{allocation}/timeline", "/nodes/n1/slots/0", "/nodes/n1/drain", "/events",
                 "/history?kind=slot&name=n1/0", "/history?kind=node&name=n1"):  # fmt: skip
        visitor.text_of(path)


def test_hostile_texts_of_accounts_and_keys_and_sessions_are_shown_and_neither_run_nor_break_a_page(
    visitor: Visitor, running_plane: RunningPlane
) -> None:
    texts = [_SEPARATOR.join(HOSTILE_TEXTS[first : first + 6]) for first in range(0, len(HOSTILE_TEXTS), 6)]
    with running_plane.client() as admin:
        for number, text in enumerate(texts):
            create_account(running_plane, f"account-{number}", "auditor", description=text)
            key = issue(running_plane, "robot", "auditor")
            assert admin.post(f"/keys/{key.id}/revoke", json={"reason": text}).is_success
    for text in _LABELS:
        session_of(running_plane, ADMIN_KEY, label=text)
    assert not_shown(visitor.text_of("/access/sessions"), _LABELS) == []
    assert not_shown(visitor.text_of("/access/keys?state=revoked"), HOSTILE_TEXTS) == []
    visitor.text_of("/access/service-accounts")
    accounts = (f"/access/service-accounts/account-{number}" for number in range(len(texts)))
    assert not_shown(" ".join(map(visitor.text_of, accounts)), HOSTILE_TEXTS) == []


def _drift() -> Iterator[dict[str, Any]]:
    """Yield drift of many kinds, each with a text as the desired and another one as the observed state."""
    pairs: Sequence[tuple[str, str]] = [*zip(_LINES[::2], [*_LINES[1::2], _LINES[0]], strict=False)]
    for number, (desired, observed) in enumerate(pairs):
        kind = f"made.{ascii_lowercase[number // 26]}{ascii_lowercase[number % 26]}"
        since = "2026-03-01T12:00:00Z"
        yield {"kind": kind, "desired": desired, "observed": observed, "since": since, "slot": None}


def _serial_log(visitor: Visitor, site: LogSite) -> str:
    """Open the serial log of a guest that printed all texts, and return what the page shows."""
    output = "\r\n".join(HOSTILE_TEXTS)

    def answer() -> None:
        site.answer(stream_id=site.requested_stream(), text=output, kept_bytes=len(output))

    with ThreadPoolExecutor(1) as pool:
        answered = pool.submit(answer)
        shown = visitor.text_of(f"/allocations/{site.allocation.id}/serial-log?slot=0")
        answered.result(20)
    return shown
