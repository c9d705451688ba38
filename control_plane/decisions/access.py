"""Roles, scopes and projects: what a principal may do, and the reason why it may not.

A route requires one scope. A role grants scopes; an API key or a token can be limited to some of them, and to some
projects. A scope is either of projects, and then limited to the projects of the principal, or of the whole fleet, and
then granted only to principals that are not limited to projects.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from control_plane.decisions.refusals import Forbidden, Malformed, Objection, UnknownName
from events.values import ProjectId


class Role(StrEnum):
    """Role of a principal. Nodes are not principals with scopes: they call only the routes of the agent."""

    CALLER = "caller"
    ADMIN = "admin"
    AUDITOR = "auditor"


class Scope(StrEnum):
    """A group of routes that a principal may be allowed to call."""

    ALLOCATIONS_READ = "allocations:read"
    ALLOCATIONS_WRITE = "allocations:write"
    EVENTS_READ = "events:read"
    TASKS_READ = "tasks:read"
    TASKS_WRITE = "tasks:write"
    CATALOGUE_READ = "catalogue:read"
    CATALOGUE_WRITE = "catalogue:write"
    PROJECTS_READ = "projects:read"
    PROJECTS_WRITE = "projects:write"
    USAGE_READ = "usage:read"
    USAGE_WRITE = "usage:write"
    FLEET_READ = "fleet:read"
    FLEET_WRITE = "fleet:write"
    ACCESS_READ = "access:read"
    ACCESS_WRITE = "access:write"
    AUDIT_READ = "audit:read"


_READING: Final = frozenset(scope for scope in Scope if scope.endswith(":read"))
_OF_CALLERS: Final = frozenset(
    {
        Scope.ALLOCATIONS_READ,
        Scope.ALLOCATIONS_WRITE,
        Scope.EVENTS_READ,
        Scope.TASKS_READ,
        Scope.CATALOGUE_READ,
        Scope.PROJECTS_READ,
        Scope.USAGE_READ,
    }
)
SCOPES_OF: Final[dict[Role, frozenset[Scope]]] = {
    Role.CALLER: _OF_CALLERS,
    Role.ADMIN: frozenset(Scope),
    Role.AUDITOR: _READING,
}
"""The scopes that each role grants."""
OF_PROJECTS: Final = _OF_CALLERS
"""The scopes that are limited to the projects of the principal; the others concern the whole fleet."""

DEFAULT: Final = ProjectId("default")
"""Project of requests that name none. It is created with the first API key of an installation."""
Within = frozenset[ProjectId] | None
"""The projects to which a query is limited; None: all projects."""


@dataclass(frozen=True, slots=True)
class Principal:
    """An authenticated caller.

    `actor` is recorded in the ledger with everything that it does, such as `key:ci-0c1d2e3f4a5b`; `projects` are the
    projects that it is limited to, None: all.
    """

    actor: str
    role: Role
    scopes: frozenset[Scope]
    projects: Within = None

    def permits(self, project: ProjectId) -> bool:
        return self.projects is None or project in self.projects


def scopes_of(role: Role, limited_to: frozenset[str]) -> frozenset[Scope]:
    """Return the scopes of a role. If `limited_to` is not empty, return only those of them that it contains."""
    granted = SCOPES_OF[role]
    return frozenset(scope for scope in granted if scope in limited_to) if limited_to else granted


def require(principal: Principal, scope: Scope) -> None:
    """Check that a principal may call a route of this scope. Raises `Forbidden` with the reason."""
    if against := against_scope(principal, scope):
        raise Forbidden(*against)


def against_scope(principal: Principal, scope: Scope) -> list[Objection]:
    """Return the reason why a principal may not call a route of this scope; an empty list if it may."""
    if scope not in SCOPES_OF[principal.role]:
        allowed = " or ".join(sorted(roles_with(scope)))
        reason = f"this request requires the role {allowed}, but the caller has the role {principal.role}"
        return [Objection("role_missing", reason)]
    if scope not in principal.scopes:
        reason = f"this request requires the scope {scope}, which the credential does not have"
        return [Objection("scope_missing", reason)]
    if principal.projects is not None and scope not in OF_PROJECTS:
        names = ", ".join(sorted(principal.projects))
        reason = f"the scope {scope} concerns all projects, but the credential is limited to {names}"
        return [Objection("limited_to_projects", reason)]
    return []


def against_granting(principal: Principal, role: Role, limited_to: Iterable[str]) -> list[Objection]:
    """Return the objection to a credential with scopes that the principal does not have itself; an empty list if it may
    issue the credential. `limited_to` are the scopes to which the credential is limited; empty: all of its role.
    """
    if beyond := scopes_of(role, frozenset(limited_to)) - principal.scopes:
        names = ", ".join(sorted(beyond))
        reason = f"the caller cannot grant scopes that its own credential does not have: {names}"
        return [Objection("scope_not_held", reason)]
    return []


def may(principal: Principal, scope: Scope) -> bool:
    """Return whether a principal may call a route of this scope."""
    return not against_scope(principal, scope)


def within(principal: Principal, project: ProjectId | None) -> Within:
    """Return the projects to which a query of a principal is limited; `project` limits it further."""
    if project is None:
        return principal.projects
    return frozenset({project} if principal.permits(project) else ())


def project_of(principal: Principal, named: str | None) -> ProjectId:
    """Return the project of a request that names one, or none: then the only project of the principal, or `default` if
    the principal is not limited to projects.

    Raises `Malformed` if the principal has several projects and the request names none, and `UnknownName` for a project
    of others, as for one that does not exist.
    """
    if named is not None:
        project = ProjectId(named)
        if not principal.permits(project):
            raise UnknownName(unknown_project(project, "/project"))
        return project
    if principal.projects is None:
        return DEFAULT
    if len(principal.projects) == 1:
        return next(iter(principal.projects))
    names = ", ".join(sorted(principal.projects))
    raise Malformed(Objection("project_missing", f"name one of your projects: {names}", "/project"))


def unknown_project(project: str, field: str | None = None, parameter: str | None = None) -> Objection:
    """Return the objection to a project that does not exist, or that the caller must not know. `field` or `parameter`
    is the part of the request that names it.
    """
    return Objection("unknown_project", f"there is no project named {project}", field, parameter)


def roles_with(scope: Scope) -> tuple[Role, ...]:
    """Return the roles that grant a scope."""
    return tuple(role for role in Role if scope in SCOPES_OF[role])
