"""The response types of the client match those of the API: same fields, and null where the API may send null."""

from collections.abc import Iterator, Mapping
from types import UnionType
from typing import Any, Final, Union, get_args, get_origin

import msgspec
import pytest
from pydantic import BaseModel

from control_plane.api.requests import problems
from control_plane.api.routes import (
    access,
    access_log,
    capabilities,
    capacity,
    nodes,
    paths,
    projections,
    projects,
    service_accounts,
    sessions,
    status,
)
from control_plane.api.routes.consoles import console_sessions, serial_logs, ssh_certificates
from control_plane.api.routes.ledger import audit, causes, history
from control_plane.api.routes.usage import views as usage
from control_plane.api.views import (
    allocation_views,
    entry_views,
    history_subjects,
    placement_views,
    task_views,
    views,
)
from control_plane.client import (
    access_answers,
    answers,
    audit_answers,
    capacity_answers,
    catalogue_answers,
    history_answers,
    projection_answers,
    usage_answers,
)
from control_plane.client.answers import Answer

RESPONSES: Final[Mapping[type[Answer], type[BaseModel]]] = {
    access_answers.AccessRow: access_log.AccessView,
    access_answers.Caller: access.CallerView,
    access_answers.Capabilities: capabilities.CapabilitiesView,
    access_answers.IssuedKey: access.IssuedKey,
    access_answers.Key: access.KeyView,
    access_answers.ServiceAccount: service_accounts.ServiceAccountView,
    access_answers.PrincipalQuota: access.PrincipalQuotaView,
    access_answers.Project: projects.ProjectView,
    access_answers.RevokedPrincipal: access.RevokedPrincipal,
    access_answers.Session: sessions.SessionView,
    access_answers.StartedSession: sessions.StartedSession,
    answers.Allocation: allocation_views.AllocationView,
    answers.Console: console_sessions.ConsoleView,
    answers.Consoles: console_sessions.ConsoleList,
    answers.ConsoleTicket: console_sessions.ConsoleTicket,
    answers.TerminalTicket: console_sessions.TerminalTicket,
    answers.CutConsole: console_sessions.CutConsole,
    answers.SshCertificate: ssh_certificates.SshCertificateView,
    answers.Drift: views.DriftView,
    answers.Event: views.EventView,
    answers.Node: views.NodeDetail,
    answers.NodeGroup: placement_views.NodeGroupView,
    answers.Placement: placement_views.PlacementView,
    answers.PlacementPreview: placement_views.PlacementPreview,
    answers.Parked: task_views.ParkedView,
    answers.Problem: problems.Problem,
    answers.ReachPath: paths.PathView,
    answers.RegisteredNode: nodes.RegisteredNode,
    answers.SerialLog: serial_logs.SerialLogView,
    answers.Slot: views.SlotView,
    answers.Status: status.StatusView,
    answers.Step: task_views.ProgressView,
    answers.Task: task_views.TaskView,
    audit_answers.ConsistencyProof: audit.ConsistencyProofView,
    audit_answers.Head: audit.HeadView,
    audit_answers.InclusionProof: audit.InclusionProofView,
    audit_answers.Sinks: audit.SinksView,
    audit_answers.Sink: audit.SinkView,
    capacity_answers.CapacityReport: capacity.CapacityReport,
    capacity_answers.NodeCapacity: capacity.NodeCapacity,
    catalogue_answers.AppProfile: entry_views.AppProfileView,
    catalogue_answers.Image: entry_views.ImageView,
    catalogue_answers.Sku: entry_views.SkuView,
    history_answers.Causes: causes.CausesView,
    history_answers.Changes: history.ChangesView,
    history_answers.History: history.HistoryView,
    history_answers.Holders: history_subjects.HoldersView,
    projection_answers.Projection: projections.ProjectionView,
    projection_answers.Verification: projections.VerificationView,
    capacity_answers.CapacityHistory: capacity.CapacityHistory,
    capacity_answers.CapacityPoint: capacity.CapacityPoint,
    usage_answers.Usage: usage.UsageView,
    usage_answers.UsageEntry: usage.EntryView,
    usage_answers.UnusedPart: usage.UnusedPartView,
    usage_answers.Period: usage.PeriodView,
    usage_answers.PeriodBill: usage.PeriodBill,
}
"""API response type of each client type. The types that their fields contain are compared with each other too."""
UNREAD: Final[Mapping[type[BaseModel], set[str]]] = {
    access_log.AccessView: {"process", "route"},
    allocation_views.AllocationView: {
        "network_id",
        "network_policy_id",
        "project_network_id",
        "replace_on_failure",
    },
    allocation_views.AllocatedSlot: {"slot_index"},
    capabilities.CapabilitiesView: {"documentation", "features", "groups", "limits"},
    history.ChangesView: {"after"},
    history.PlaceView: {"cursor"},
    history.ChangeView: {"correlation_id", "observed_at", "stream"},
    history_subjects.Tenant: {"sku"},
    projections.VerificationView: {"requested_by", "requested_at", "ended_at"},
    views.EventView: {"correlation_id", "epoch", "observed_at", "trace_context"},
}
"""Fields that the client does not read; `Reply.raw` has them."""
FROM_ANOTHER_RESPONSE: Final[Mapping[type[Answer], set[str]]] = {answers.Step: {"slot_id", "task_id"}}
"""Fields of client types that another response of the API contains: the watch of progress sends them, the view of a
task does not.
"""


def parts(kind: Any) -> Iterator[Any]:
    """Yield the simple types in an annotation: members of a union, items of a list, keys and values of a mapping."""
    if get_origin(kind) in (None, Union, UnionType) and not get_args(kind):
        yield kind
    for part in get_args(kind):
        yield from parts(part)


def compared(answer: type[Answer], view: type[BaseModel]) -> dict[type[Answer], type[BaseModel]]:
    """Return the API response type of each client type that `answer` contains, including `answer` itself."""
    found = {answer: view}
    for field in msgspec.structs.fields(answer):
        sent = sent_fields(view).get(field.encode_name)
        read = [each for each in parts(field.type) if isinstance(each, type) and issubclass(each, Answer)]
        shown = [each for each in parts(sent) if isinstance(each, type) and issubclass(each, BaseModel)]
        for pair in zip(read, shown, strict=False):
            found |= compared(*pair)
    return found


def sent_fields(view: type[BaseModel]) -> dict[str, Any]:
    """Return the type of each field of an API response, by the field's name in JSON."""
    return {field.serialization_alias or name: field.annotation for name, field in view.model_fields.items()}


def fields_of(answer: type[Answer]) -> list[msgspec.structs.FieldInfo]:
    elsewhere = FROM_ANOTHER_RESPONSE.get(answer, set())
    return [field for field in msgspec.structs.fields(answer) if field.encode_name not in elsewhere]


def name_of(kind: type) -> str:
    return kind.__name__


PAIRS: Final = {a: v for pair in RESPONSES.items() for a, v in compared(*pair).items()}


@pytest.mark.parametrize(("answer", "view"), PAIRS.items(), ids=name_of)
def test_client_reads_every_field_of_each_api_response(answer: type[Answer], view: type[BaseModel]) -> None:
    shown = sent_fields(view).keys() - UNREAD.get(view, set())
    assert {field.encode_name for field in fields_of(answer)} == shown


@pytest.mark.parametrize(("answer", "view"), PAIRS.items(), ids=name_of)
def test_client_accepts_null_in_every_response_field_that_the_api_may_send_as_null(
    answer: type[Answer], view: type[BaseModel]
) -> None:
    sent = sent_fields(view)
    refused = [
        field.encode_name
        for field in fields_of(answer)
        if type(None) in parts(sent[field.encode_name]) and not accepts_null(field.type)
    ]
    assert refused == []


def accepts_null(kind: Any) -> bool:
    return kind is msgspec.Raw or type(None) in parts(kind) or Any in parts(kind)


def test_every_response_type_of_the_client_is_compared_with_a_response_type_of_the_api() -> None:
    every = set(subclasses(Answer)) - {answers.Page}
    assert every == PAIRS.keys()


def subclasses(kind: type[Answer]) -> Iterator[type[Answer]]:
    for each in kind.__subclasses__():
        yield each
        yield from subclasses(each)
