"""Settings of the identity provider of the access tests, as in `SLICEPLANE_OIDC`."""

from typing import Any

from control_plane.decisions.issuers import Issuer
from tests.servers.oidc_provider import AUDIENCE, CLIENT, Provider

GRANTS = (
    {"claim": ["realm_access", "roles"], "value": "slice-workload", "role": "caller", "projects": ["batch"]},
    {"claim": "groups", "value": "/vision", "role": "caller", "projects": ["vision"]},
    {"claim": "groups", "value": "/rendering", "role": "caller", "projects": ["rendering"]},
    {"claim": "groups", "value": "/reviewers", "role": "auditor"},
    {"claim": "groups", "value": "/operators", "role": "admin"},
    {"claim": "scope", "value": "slices.audit", "role": "auditor", "projects": ["vision"]},
)


def issuer_of(provider: Provider, **changes: Any) -> Issuer:
    """Return the settings with which the control plane trusts the provider under the name `corp`."""
    fields = {
        "issuer": provider.issuer,
        "name": "corp",
        "audience": AUDIENCE,
        "client_id": CLIENT,
        "grants": GRANTS,
    }
    return Issuer.model_validate({**fields, **changes})
