"""`/v1/allocations/{allocation}/ssh-certificates`: SSH certificates with which callers log in to slices."""

from datetime import datetime

from fastapi import APIRouter, Request
from pydantic import BaseModel

from control_plane.api.catalogue.naming_route import NamingRoute
from control_plane.api.requests.access import Caller, access
from control_plane.api.requests.bodies import RequestSshCertificate
from control_plane.api.requests.commands import execute
from control_plane.api.requests.problems import PROBLEMS
from control_plane.api.requests.state import origin_of
from control_plane.api.routes.allocations import own_allocation
from control_plane.commands.consoles.ssh_certificates import issue_ssh_certificate
from control_plane.decisions.access import Scope
from events.consoles.ssh_certificates import SshCertificateIssued
from events.values import SshPublicKey

router = APIRouter(
    prefix="/v1/allocations", tags=["allocations"], responses=PROBLEMS, route_class=NamingRoute
)


class SshCertificateView(BaseModel):
    """An SSH certificate for the slices of an allocation."""

    allocation_id: str
    certificate: str
    """Line of an OpenSSH certificate file, such as `id_ed25519-cert.pub`."""
    fingerprint: str
    """Fingerprint of the public key in the certificate."""
    key_id: str
    """The caller, as the SSH server of a slice logs it."""
    serial: int
    valid_until: datetime


@router.post("/{allocation}/ssh-certificates", status_code=201, openapi_extra=access(Scope.ALLOCATIONS_WRITE))
async def create(
    request: Request, principal: Caller, allocation: str, body: RequestSshCertificate
) -> SshCertificateView:
    """Issue an SSH certificate for a public key, which the SSH gateway and the slices of the allocation accept until
    `valid_until`. The allocation must be active and have `gateway_access`.

    A repeated request with the same idempotency key gets the first certificate, which may have expired.
    """
    name = await own_allocation(request, allocation)
    key, origin = SshPublicKey(body.public_key), origin_of(request, principal)
    answer = await execute(request, issue_ssh_certificate(name, key, origin, _rendered))
    return SshCertificateView.model_validate_json(answer)


def _rendered(fact: SshCertificateIssued, certificate: str) -> str:
    return SshCertificateView(
        allocation_id=fact.allocation_id,
        certificate=certificate,
        fingerprint=fact.fingerprint,
        key_id=fact.key_id,
        serial=fact.serial,
        valid_until=fact.valid_until,
    ).model_dump_json()
