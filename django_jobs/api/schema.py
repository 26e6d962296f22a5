"""`/schema/`: this API in OpenAPI 3, by drf-spectacular. Importing this module needs that package, nothing else here does."""

from __future__ import annotations

import inspect
from threading import Lock
from typing import Any, ClassVar, Final

from drf_spectacular.drainage import error
from drf_spectacular.generators import SchemaGenerator
from drf_spectacular.openapi import AutoSchema
from drf_spectacular.plumbing import ComponentIdentity, ComponentRegistry, ResolvedComponent
from drf_spectacular.settings import spectacular_settings
from rest_framework.request import Request
from rest_framework.response import Response

from .. import __version__
from ..conf import jobs_settings
from .base import JobsView, NotFoundView
from .schema_batches import batch_components
from .schema_operations import ALWAYS, WHAT, WITH_BODY, Operation, operations, path_parameters
from .schema_parts import PREFIX, Part, components, ref

_SECURITY: Final = {
    "jobsToken": {"type": "http", "scheme": "bearer", "description": "A token: `manage.py jobs token add`."},
    "jobsSession": {"type": "apiKey", "in": "cookie", "name": "sessionid", "description": "A session of the site."},
}


class JobsSchema(AutoSchema):
    """Describes our views from the table of operations: also where a project describes its whole API with ours in it."""

    def is_excluded(self) -> bool:
        """Leave out the second address of each endpoint, which has no slash at its end, and the one that catches the rest."""
        return isinstance(self.view, NotFoundView) or not self.path.endswith("/")

    def get_operation(
        self, path: str, path_regex: str, path_prefix: str, method: str, registry: ComponentRegistry
    ) -> dict[str, Any] | None:
        """Return the operation, with the components that it needs put into `registry`."""
        self.path = path
        if self.is_excluded():
            return None
        table = operations()
        table[SchemaView, "GET"] = Operation("jobs_schema", {200: {"type": "object"}}, "service")
        operation = table.get((type(self.view), method))
        if operation is None:
            error(f"{type(self.view).__name__}.{method}: not in the table of operations.")
            return None
        for name, part in (components() | batch_components()).items():
            _register(registry, PREFIX + name, ResolvedComponent.SCHEMA, part)
        for name, part in _SECURITY.items():
            _register(registry, name, ResolvedComponent.SECURITY_SCHEMA, part)
        view: Any = self.view
        written = _written(operation, path, inspect.getdoc(getattr(view, method.lower())) or "")
        verbs = view.verbs[method].replace("|", " or ")
        written["description"] += f"\n\nNeeds: {verbs}."
        adapted: dict[str, Any] = _adapted(written)
        return adapted


def _register(registry: ComponentRegistry, name: str, kind: Any, part: Part) -> None:
    component = ResolvedComponent(name, kind, _adapted(part), ComponentIdentity(name))  # type: ignore[no-untyped-call]
    registry.register_on_missing(component)


def _written(operation: Operation, path: str, text: str) -> dict[str, Any]:
    where = [("path", name, part) for name, part in path_parameters().items() if f"{{{name}}}" in path]
    where += [("query", name, part) for name, part in operation.query.items()]
    where += [("header", name, part) for name, part in operation.header.items()]
    said: dict[str, Any] = {
        "operationId": operation.id + ("_of_info" if path.endswith("/info/version/") else ""),  # at two addresses
        "summary": text.split("\n")[0],
        "description": text,
        "tags": [operation.tag],
        "parameters": [_parameter(*each) for each in where],
        "security": [{name: []} for name in _SECURITY],
        "responses": _responses(operation),
    }
    if operation.body is not None:
        said["requestBody"] = {"content": {"application/json": {"schema": operation.body}}, "required": operation.needs_body}
    return said


def _parameter(kind: str, name: str, part: Part) -> dict[str, Any]:
    said: dict[str, Any] = {"in": kind, "name": name, "schema": part}
    if kind == "path":
        said["required"] = True
    if part.get("type") == "array":
        said |= {"style": "form", "explode": False}  # a,b,c
    return said


def _responses(operation: Operation) -> dict[str, Any]:
    headers = {name: {"schema": part} for name, part in operation.gives.items()}
    found: dict[str, Any] = {}
    for status, part in operation.answers.items():
        said: dict[str, Any] = {"description": WHAT[status]}
        if part is not None:
            media_type = operation.media_type if status < 400 else "application/json"
            said["content"] = {media_type: {"schema": part}}
        if headers:
            said["headers"] = headers
        found[str(status)] = said
    errors = {*ALWAYS, *(WITH_BODY if operation.body is not None else ()), *((409,) if operation.conflicts else ())}
    media_types = {"application/json", operation.media_type}
    for status in sorted(errors - set(operation.answers)):
        content = {media_type: {"schema": ref("Error")} for media_type in sorted(media_types)}
        found[str(status)] = {"description": WHAT[status], "content": content}
    return dict(sorted(found.items()))


def _adapted(part: Any) -> Any:
    """Return `part` in the version of OpenAPI that the project has chosen: 3.1 says null by a type of its own."""
    if not str(spectacular_settings.OAS_VERSION).startswith("3.1"):
        return part
    if isinstance(part, list):
        return [_adapted(each) for each in part]
    if not isinstance(part, dict):
        return part
    said = {name: _adapted(each) for name, each in part.items() if name != "nullable"}
    if part.get("nullable") is not True:
        return said
    return {"anyOf": [said, {"type": "null"}]}


class SchemaView(JobsView):
    """This API in OpenAPI 3."""

    verbs: ClassVar = {"GET": "view"}

    def get(self, request: Request) -> Response:
        """Return its description, as JSON."""
        prefix = request._request.path.rstrip("/").removesuffix("schema")
        return Response(described(prefix))


_lock = Lock()
_made: dict[tuple[Any, ...], dict[str, Any]] = {}


def described(prefix: str) -> dict[str, Any]:
    """Return the description of the API below `prefix`. It is made once for the settings as they are."""
    key = (prefix, jobs_settings().api_page_size_max, jobs_settings().api_bulk_max, jobs_settings().api_claim_max)
    with _lock:
        if key not in _made:
            from .urls import urlpatterns

            generator: Any = SchemaGenerator(patterns=urlpatterns)  # type: ignore[no-untyped-call]
            made = generator.get_schema(request=None, public=True)
            made["info"] = {"title": "Background jobs", "version": __version__}
            made["servers"] = [{"url": prefix.rstrip("/")}]
            _made[key] = made
        return _made[key]


JobsView.schema = JobsSchema()
