"""Actions on a resource: each has a page that states its effect, asks for what it needs, and shows it as a command.

An action is a request of the API with the fields of a form. It is disabled, with the reason of the API, where it is not
allowed. A dangerous one asks for a reason, or for the name of the resource.
"""

from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from http import HTTPStatus
from typing import Any, Final, Literal, NamedTuple

from starlette.responses import Response

from control_plane.web.calls import Refusal
from control_plane.web.commands import Command, command_of, server_of
from control_plane.web.cookies import ROOT
from control_plane.web.visits import Form, Visit, problem, see_other

CONFIRM: Final = "confirm"
NEW: Final = ""
"""Label of a resource that does not exist before the action. No resource has an empty name."""
_CONFIRM_CHARACTERS: Final = 6
_LONG: Final = 24
"""Names with more characters than this are confirmed by their last `_CONFIRM_CHARACTERS` characters."""
View = Mapping[str, Any]
Words = tuple[str, ...]
Names = Mapping[str, str]
"""Path parameters of the page, such as the node and the index of a slot."""


class Field(NamedTuple):
    """A field of an action's form. `example` is its value in the shown commands while the field is empty."""

    name: str
    label: str
    kind: Literal["text", "number", "money", "choice", "several", "lines"] = "text"
    """The label of `money` is shown with the currency of the deployment. `several` are checkboxes, one for each of
    `choices`; the value has the chosen ones, separated by spaces.
    """
    required: bool = True
    value: str = ""
    example: str = ""
    choices: tuple[str, ...] = ()
    group: str = ""
    """Title of the group in which the form shows the field. The fields of a group follow each other."""
    pointer: str = ""
    """JSON pointer of the value in the request of the API; empty: `/` and the name of the field."""

    @property
    def pointers(self) -> tuple[str, ...]:
        """JSON pointers that refer to this field in refusals of the API and of the console."""
        return (f"/{self.name}", *((self.pointer,) if self.pointer else ()))


REASON: Final = Field("reason", "Reason (recorded)", example="REASON")


class Call(NamedTuple):
    """A request that a page sends to the API. `path` is appended to the path of the resource."""

    method: str
    path: tuple[str, ...] = ()
    body: Mapping[str, Any] | None = None


class Action(NamedTuple):
    """An action on a resource: what it does, and its request."""

    title: str
    allowed_by: str
    """Name of the action in `allowed_actions` of the resource."""
    effect: str
    call: Callable[[Form], Call]
    cli: Callable[[Words, Form], Words]
    """Words of the command line behind `sliceplane`, for the words that name the resource and the form."""
    fields: tuple[Field, ...] = ()
    dangerous: bool = False
    """A dangerous action has the field `REASON` or `asks_name`."""
    asks_name: bool = False
    """Its form asks for the name of the resource, to confirm the action."""
    preposition: str = ""
    """Word between the title and the resource in headings, such as `of` in `Renew lease of allocation`."""
    facts: Callable[[Visit, View], Awaitable[Mapping[str, Any]]] | None = None
    """Returns further facts that matter for this action. Its form shows them after the facts of the resource."""
    warning: Callable[[Visit, View], Awaitable[str | None]] | None = None
    """Returns what a user must know before the action, such as its effect on the login of the user; None: nothing."""
    initial: Callable[[View], Names] | None = None
    """Returns the initial values of fields that follow from the present state."""
    load: Callable[[Visit, View], Awaitable[View]] | None = None
    """Returns the view of the resource with further data for this action, such as the limits of its values."""
    choices: Callable[[View], Mapping[str, tuple[str, ...]]] | None = None
    """Returns the choices of fields that are selected from lists which follow from the present state. A field without
    choices stays a field for text.
    """
    made: Callable[[View], str] | None = None
    """Returns the path of the page of what the action created, from the response; None: the page of the resource."""
    secret: str | None = None
    """Field of the response that has a secret. The browser gets it on a page, and is not redirected."""
    template: str = "secret.html"
    """Template of the page that shows the secret."""
    in_state: Callable[[View], Mapping[str, Any]] | None = None
    """Returns the values of `title`, `effect` and `preposition` that differ in the present state of the resource.
    Forms for several resources have the same texts for all.
    """

    def adapted(self, view: View) -> "Action":
        """Return the action with the title and the effect that it has in the present state of the resource."""
        return self if self.in_state is None else self._replace(**self.in_state(view))

    def first_values(self, view: View) -> dict[str, str]:
        """Return the initial values of the fields of the form, in the present state of the resource."""
        fixed = {each.name: each.value for each in self.fields}
        return fixed if self.initial is None else {**fixed, **self.initial(view)}

    def on(self, what: str) -> str:
        """Return the title, followed by what the action changes, such as `Drain node` or `Renew lease of 2
        allocations`. A title that ends with it already, such as `Close the billing period`, is returned unchanged.
        """
        if self.title.endswith(what):
            return self.title
        return " ".join(filter(None, (self.title, self.preposition, what)))


class Resource(NamedTuple):
    """A kind of resource: its actions, its path in the API and the console, and what the page of an action shows."""

    kind: str
    actions: Mapping[str, Action]
    path: Callable[[Names], tuple[str, ...]]
    """Segments of the path of the API."""
    page: Callable[[Names], str]
    """Path of the page, below the root of the console, to which the browser returns."""
    facts: Callable[[View], Mapping[str, Any]]
    label: Callable[[Names], str]
    """Name of the resource, as users write it."""
    words: Callable[[Names], Words]
    """Arguments of the command line that name the resource."""
    load: Callable[[Visit, Names], Awaitable[View]] | None = None
    """Returns the view of the resource, with its `allowed_actions`; None: the view is that of the API at `path`."""
    title: Callable[[View], str] | None = None
    """Returns the name of the resource in the heading of an action's form; None: its `label`."""

    async def view(self, visit: Visit, names: Names, action: Action) -> View:
        """Return the view of the resource, with the data for an action. Raises `Refusal`."""
        found: View = await (visit.get(*self.path(names)) if self.load is None else self.load(visit, names))
        return found if action.load is None else await action.load(visit, found)

    async def facts_for(self, visit: Visit, action: Action, view: View) -> Mapping[str, Any]:
        """Return the facts that the form of an action shows."""
        return {**self.facts(view), **({} if action.facts is None else await action.facts(visit, view))}


def plain(method: str, *path: str) -> Callable[[Form], Call]:
    """Return the request of an action without a body."""
    return lambda _form: Call(method, path)


def with_reason(*path: str) -> Callable[[Form], Call]:
    """Return the POST request of an action that needs a reason and nothing else."""
    return lambda form: Call("POST", path, {"reason": form.text("reason")})


def words(*given: str, reason: bool = False) -> Callable[[Words, Form], Words]:
    """Return the words of a command line, followed by the name of the resource; with `reason`, also by the option
    `--reason`.
    """
    return lambda name, form: (*given, *name, *(("--reason", form.text("reason")) if reason else ()))


def commands_of(visit: Visit, resource: Resource, names: Names, action: Action, form: Form) -> Command:
    """Return an action as commands, with the values of a form, and examples in place of those that are missing."""
    shown = form.values()
    # Values are not stripped: white space at the ends is part of some values, such as the banner of a check.
    filled = Form(
        [
            (each.name, value if (value := shown.get(each.name, "")).strip() else each.example)
            for each in action.fields
        ]
    )
    call = action.call(filled)
    return command_of(
        visit.request, action.title, cli=action.cli(resource.words(names), filled),
        method=call.method, path=(*resource.path(names), *call.path), body=call.body,
    )  # fmt: skip


class _Request(NamedTuple):
    """A request for the form of an action on a resource, or with that form."""

    visit: Visit
    resource: Resource
    names: Names
    name: str
    """Name of the action."""

    @property
    def action(self) -> Action:
        return self.resource.actions[self.name]

    async def view(self) -> View:
        return await self.resource.view(self.visit, self.names, self.action)


def page_of(resource: Resource) -> Callable[[Visit], Awaitable[Response]]:
    """Return the page with the form of an action on a resource."""

    async def confirm(visit: Visit) -> Response:
        request = _requested(visit, resource)
        action, view = request.action, await request.view()
        given = {each.name: visit.query(each.name) for each in action.fields}
        values = action.first_values(view) | {key: value for key, value in given.items() if value is not None}
        return await _form(request, view, values)

    return confirm


def act_on(resource: Resource) -> Callable[[Visit], Awaitable[Response]]:
    """Return the handler that carries out an action on a resource, or shows its form again with the refusal."""

    async def act(visit: Visit) -> Response:
        request = _requested(visit, resource)
        form = await visit.form()
        try:
            _refuse_incomplete(request, form)
            call = request.action.call(form)
            path = (*resource.path(request.names), *call.path)
            answer = await visit.send(
                call.method, *path, body=call.body, idempotency_key=form.text("idempotency_key")
            )
        except Refusal as refusal:
            if refusal.status == HTTPStatus.UNAUTHORIZED:
                raise
            return await _form(request, await request.view(), form.values(), refusal)
        return _done(request, answer)

    return act


def _done(request: _Request, answer: View) -> Response:
    """Return the redirection to the page that shows the effect of an action, or the page with its secret."""
    action = request.action
    page = request.resource.page(request.names) if action.made is None else action.made(answer)
    target = f"{ROOT}{page}"
    if action.secret is None:
        return see_other(f"{target}?notice={request.name}")
    return request.visit.render(
        action.template,
        HTTPStatus.CREATED,
        action=action,
        made=answer,
        secret=answer[action.secret],
        target=target,
        server=server_of(request.visit.request),
    )


def _refuse_incomplete(request: _Request, form: Form) -> None:
    """Check that the required fields of a form have values, and that the action is confirmed. Raises `Refusal`."""
    action, label = request.action, request.resource.label(request.names)
    refuse_empty(action, form)
    if action.asks_name and form.text(CONFIRM) not in (label, confirmation_of(label)):
        raise invalid(f"the action is not confirmed: enter {confirmation_of(label)}", "not_confirmed")


def refuse_empty(action: Action, form: Form) -> None:
    """Check that the required fields of an action's form have values. Raises `Refusal`."""
    for each in action.fields:
        if each.required and not form.text(each.name):
            raise invalid(f"the field {each.name!r} is empty", "required", field=each.name)


async def _form(
    request: _Request, view: View, values: Mapping[str, str], refusal: Refusal | None = None
) -> Response:
    """Return the page with the form of an action, and with the refusal of the form that was sent before."""
    visit, resource, action = request.visit, request.resource, request.action.adapted(view)
    label = resource.label(request.names)
    try:
        command = commands_of(visit, resource, request.names, action, Form([*values.items()]))
    except Refusal:
        # A value that the form refuses has no command either.
        command = None
    return visit.render(
        "action.html",
        HTTPStatus.OK if refusal is None else refusal.status,
        action=action,
        heading=action.title if label == NEW else action.on(resource.kind),
        label=label,
        shown=None if label == NEW else label if resource.title is None else resource.title(view),
        facts=await resource.facts_for(visit, action, view),
        warning=None if action.warning is None else await action.warning(visit, view),
        state=view.get("state"),
        allowed=view["allowed_actions"][action.allowed_by],
        fields=[*_offered(action, view, values)],
        values={each.name: values.get(each.name, "") for each in action.fields},
        refused=None if refusal is None else refusal.problem,
        wrong={} if refusal is None else _reasons_by_field(action, refusal),
        command=command,
        confirmed_by=confirmation_of(label) if action.asks_name else None,
        back=f"{ROOT}{resource.page(request.names)}",
    )


def _reasons_by_field(action: Action, refusal: Refusal) -> Mapping[str, Sequence[View]]:
    """Return the reasons of a refusal by the field of the form that they are about. Reasons about no field of the form
    are left out.
    """
    found = defaultdict[str, list[View]](list)
    for reason in refusal.problem["reasons"]:
        for field in action.fields:
            # The pointer `/projects/0` is about the first value of the field `projects`.
            if any(f"{reason['field']}/".startswith(f"{each}/") for each in field.pointers):
                found[field.name].append(reason)
    return found


def _offered(action: Action, view: View, values: Mapping[str, str]) -> Iterator[Field]:
    """Yield the fields of the form of an action. A field with choices gets those of the present state of the resource,
    and the value in `values` as a further choice: a form that was refused is shown again as it was sent.
    """
    choices = {} if action.choices is None else action.choices(view)
    for each in action.fields:
        if offered := choices.get(each.name):
            value, is_several = values.get(each.name, ""), each.kind == "several"
            chosen = value.split() if is_several else [value]
            added = [one for one in chosen if one not in offered]
            yield each._replace(kind="several" if is_several else "choice", choices=(*added, *offered))
        else:
            yield each


def confirmation_of(label: str) -> str:
    """Return what a user types to confirm a dangerous action: the name, or the end of a long one."""
    return label[-_CONFIRM_CHARACTERS:] if len(label) > _LONG else label


def invalid(message: str, code: str = "invalid_value", *, field: str | None = None) -> Refusal:
    """Return the refusal of a value that a form has. `field` names its field."""
    return problem(HTTPStatus.UNPROCESSABLE_ENTITY, code, message, "Correct the value.", field=field)


def by_scope(visit: Visit, *actions: str, scope: str) -> View:
    """Return `allowed_actions` of actions for which the API has no view, such as those that create a resource: each is
    allowed to callers with the scope.
    """
    allowed = visit.allows(scope)
    reason = {} if allowed else {"code": "scope_missing", "reason": f"the scope {scope} is missing"}
    return {each: {"allowed": allowed, **reason} for each in actions}


def list_of(path: str, actions: Mapping[str, Action], scope: str) -> Resource:
    """Return the list at `path` of the API and of the console as a resource, with the actions that create its items.
    Callers need `scope` for them.
    """

    async def load(visit: Visit, _names: Names) -> View:
        # A caller that may not read the list gets the refusal of the API.
        await visit.get(path, limit=1)
        return {"allowed_actions": by_scope(visit, *actions, scope=scope)}

    return Resource(
        f"list of {path}", actions,
        path=lambda _names: (path,),
        page=lambda _names: f"/{path}",
        facts=lambda _view: {},
        label=lambda _names: NEW,
        words=lambda _names: (),
        load=load,
    )  # fmt: skip


def without_repeated(view: View, kind: str, done: Mapping[str, str]) -> View:
    """Return the view of a resource, changed so that an action that was carried out already is not allowed, such as
    the cordon of a cordoned node. The API accepts such a request, but it changes nothing. `done` are the states that
    follow from these actions, by their names in `allowed_actions`.
    """
    allowed = dict(view["allowed_actions"] or {})
    for name, state in done.items():
        if allowed.get(name, {}).get("allowed"):
            allowed[name] = {
                "allowed": False,
                "code": None,
                "reason": f"{kind} {view['id']} is {state} already",
            }
    return {**view, "allowed_actions": allowed or None}


def seconds(amount: str, unit: str, factor: int) -> int:
    """Return the seconds of an amount that a form has, such as `1` or `0.5`, in units of `factor` seconds. Raises
    `Refusal`.
    """
    return scaled(amount, unit, factor)


def scaled(amount: str, unit: str, factor: int, *, field: str | None = None) -> int:
    """Return an amount that a form has in a unit, such as `1` or `0.5`, in the smaller unit of the API: `factor` of it
    are one `unit`. `field` names the field of the form. Raises `Refusal`.
    """
    try:
        return round(float(amount) * factor)
    except (ValueError, OverflowError):
        message = f"{amount[:32]!r} is not a number of {unit}; enter a number such as 1 or 0.5"
        raise invalid(message, field=field) from None


def whole(text: str, what: str, *, field: str | None = None) -> int:
    """Return the whole number of a form's field; `what` describes it, and `field` is its name. Raises `Refusal`."""
    if not (text.isascii() and text.isdigit() and len(text) <= _LONG):
        raise invalid(f"{text[:32]!r} is not {what}; enter a whole number", field=field)
    return int(text)


def _requested(visit: Visit, resource: Resource) -> _Request:
    """Return what a request is about, from its path. Raises `Refusal` for an unknown action."""
    names = dict(visit.request.path_params)
    action = names.pop("action")
    if action not in resource.actions:
        offered = ", ".join(resource.actions)
        message = f"there is no action {action!r} on a {resource.kind}; choose one of {offered}"
        raise problem(HTTPStatus.NOT_FOUND, "not_found", message, f"Open the page of the {resource.kind}.")
    return _Request(visit, resource, names, action)
