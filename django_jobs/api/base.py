"""`JobsView`: what every endpoint has in common. Nothing of the project's own `REST_FRAMEWORK` settings opens or closes it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Final
from uuid import UUID

from django.conf import settings
from django.db import transaction
from django.http import HttpRequest
from django.utils.functional import cached_property
from django.utils.module_loading import import_string
from rest_framework.authentication import BaseAuthentication, SessionAuthentication
from rest_framework.metadata import BaseMetadata
from rest_framework.renderers import BaseRenderer
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.reverse import reverse
from rest_framework.throttling import BaseThrottle
from rest_framework.views import APIView

from ..conf import jobs_database, jobs_settings, readers
from ..models import ApiToken, Job
from .authentication import TokenAuthentication
from .errors import ApiError, handler, invalid, not_found
from .parsers import StrictJSONParser
from .permissions import Caller, HasVerb, forbidden
from .rendering import JobsJSONRenderer, Negotiation, renderers

if TYPE_CHECKING:
    from ..models.job import JobQuerySet

#: What every view takes: REST framework's choice of a renderer.
_ALWAYS: Final = frozenset({"format"})
#: What a view with pages takes.
PAGE_QUERY: Final = frozenset({"cursor", "page_size"})


class Metadata(BaseMetadata):
    """What OPTIONS tells."""

    def determine_metadata(self, request: Request, view: Any) -> dict[str, Any]:
        """Return the name of the endpoint, what it is for, and what it takes."""
        return {
            "name": view.get_view_name(),
            "description": view.get_view_description(),
            "methods": view.allowed_methods,
            "query": sorted(view.query),
        }


class JobsView(APIView):
    """An endpoint. A subclass says which verb each method needs, and which keys its query may have."""

    #: Method -> a verb of `permissions.VERBS`, or several joined by `|`, of which any will do. Checked before the body is read.
    verbs: ClassVar[Mapping[str, str]] = {}
    #: Keys that the query may have; another is a 400.
    query: ClassVar[frozenset[str]] = frozenset()

    permission_classes = (HasVerb,)
    parser_classes = (StrictJSONParser,)
    content_negotiation_class = Negotiation
    metadata_class = Metadata
    versioning_class = None

    @classmethod
    def as_view(cls, **initkwargs: Any) -> Any:
        """Return the view, outside of `ATOMIC_REQUESTS`: each move is a transaction of its own, and a claim may wait for long."""
        view = super().as_view(**initkwargs)
        for alias in settings.DATABASES:
            view = transaction.non_atomic_requests(using=alias)(view)
        return view

    # What REST framework asks.

    def get_authenticators(self) -> list[BaseAuthentication]:
        """Return those of the setting API_AUTHENTICATION, else tokens and the site's sessions."""
        paths = jobs_settings().api_authentication
        if not paths:
            return [TokenAuthentication(), SessionAuthentication()]
        return [import_string(path)() for path in paths]

    def get_throttles(self) -> list[BaseThrottle]:
        """Return those of the setting API_THROTTLES."""
        return [import_string(path)() for path in jobs_settings().api_throttles]

    def get_renderers(self) -> list[BaseRenderer]:
        """Return JSON, and pages for people."""
        return renderers()

    def get_exception_handler(self) -> Any:
        """Return ours: one shape for every error."""
        return handler

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        """Let in who may come in, then look at the address."""
        super().initial(request, *args, **kwargs)
        if any("\x00" in value for value in kwargs.values() if isinstance(value, str)):
            raise not_found("There is nothing here.")
        for name, values in request.query_params.lists():
            if len(values) > 1 and name != "status":
                raise invalid(name[:100], "may be given once.")
            if name not in self.query and name not in _ALWAYS:
                raise invalid(name[:100], f"there is no such parameter{readers.nearest(name, self.query)}")
            if any("\x00" in value for value in values):
                raise invalid(name, "text with a NUL character means nothing here.")

    def finalize_response(self, request: Request, response: Any, *args: Any, **kwargs: Any) -> Any:
        """Say in JSON what went wrong here: a page for people would ask the database who they are."""
        if response.status_code >= 500:
            request.accepted_renderer, request.accepted_media_type = JobsJSONRenderer(), JobsJSONRenderer.media_type
        return super().finalize_response(request, response, *args, **kwargs)

    # For the views.

    @cached_property
    def using(self) -> str:
        """The alias of the database that holds the jobs."""
        return jobs_database()

    @property
    def caller(self) -> Caller:
        """Who asks."""
        return self.caller_of(self.request)

    def caller_of(self, request: Request) -> Caller:
        """Return who makes `request` (the browsable API makes others, to see what to offer)."""
        return Caller(request.user, request.auth if isinstance(request.auth, ApiToken) else None)

    def require(self, verb: str) -> None:
        """Raise 403 if the caller may not do `verb`: where the method's verb is not all there is to ask."""
        if not self.caller.may(verb):
            raise forbidden(verb)

    def jobs(self) -> JobQuerySet:
        """Return the jobs that the caller sees."""
        return self.caller.narrow(Job.objects.using(self.using))

    def job(self, pk: UUID) -> Job:
        """Return one job, or raise 404: also for one that the caller may not see."""
        job = self.jobs().filter(pk=pk).first()
        if job is None or not self.caller.sees(job.queue):
            raise not_found(f"There is no job {pk}.")
        return job

    def check_queue(self, name: str, verb: str) -> None:
        """Raise 403 if the caller's token is not for the queue `name`. `verb` is what was asked for, as text for people."""
        if not self.caller.sees(name):
            raise ApiError(403, "forbidden", f"This token is not for the queue {name!r}: it can't {verb} there.", queue=name)

    def require_all(self) -> None:
        """Raise 403 if there may be jobs that the caller does not see: for what takes or deletes any of a queue's jobs."""
        if not self.caller.sees_every_job:
            raise ApiError(
                403, "forbidden", "You see a part of the jobs; this acts on all of a queue's, so it is for superusers."
            )

    def require_numbers(self) -> None:
        """Raise 403 if there may be jobs in the caller's queues that the caller does not see: numbers count them all."""
        if not self.caller.sees_every_job:
            raise ApiError(403, "forbidden", "You see a part of the jobs; numbers count them all, so they are for superusers.")

    def body(self, allowed: Collection[str]) -> dict[str, Any]:
        """Return the request's JSON object; raise 400 if it is none, or has a key that is not among `allowed`."""
        data = self.request.data
        if not isinstance(data, dict):
            raise ApiError(400, "invalid", f"The body has to be a JSON object, not {_kind(data)}.")
        if unknown := [name for name in data if name not in allowed]:
            fields = {name[:100]: f"there is no such field{readers.nearest(name, allowed)}" for name in unknown[:20]}
            raise ApiError(400, "invalid", "; ".join(f"{name}: {text}" for name, text in fields.items()), fields)
        return data

    def optional_body(self, allowed: Collection[str]) -> dict[str, Any]:
        """Do the same where a request may come without a body: then it says nothing."""
        return self.body(allowed) if self.has_body else {}

    @property
    def has_body(self) -> bool:
        """Whether the request has a body. By its headers: who asked for a session has read it already."""
        headers = self.request.META
        return headers.get("CONTENT_LENGTH") not in (None, "", "0") or bool(headers.get("HTTP_TRANSFER_ENCODING"))

    def url(self, name: str, /, **kwargs: Any) -> str:
        """Return the whole address of another endpoint, below the prefix by which this request came."""
        match = self.request.resolver_match
        namespace = match.namespace if match is not None else "django_jobs_api"
        return str(reverse(f"{namespace}:{name}", kwargs=kwargs, request=self.request))


def _kind(value: Any) -> str:
    names = {list: "a list", str: "text", bool: "true or false", int: "a number", float: "a number", type(None): "null"}
    return names.get(type(value), "a form")


class NotFoundView(JobsView):
    """Every address below the prefix that is none: 404 in the shape of all errors, for those who may ask at all."""

    format_kwarg = None

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        """Say 401 to nobody, 404 to everybody else, whatever the method."""
        request.accepted_renderer, request.accepted_media_type = self.perform_content_negotiation(request)
        self.perform_authentication(request)
        if not getattr(request.user, "is_authenticated", False):
            self.permission_denied(request)
        raise not_found(f"There is no endpoint {HttpRequest.get_full_path(request._request)[:200]!r}.")

    def get(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        """Never get here."""
        raise AssertionError
