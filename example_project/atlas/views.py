"""The pages, the pictures, and the two addresses that the pages' script asks."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from django.core.paginator import Paginator
from django.db.models import Count, Q
from django.http import Http404, HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.urls import reverse
from django.utils import timezone
from django.views.decorators.http import require_POST, require_safe

from django_jobs import JobResult
from django_jobs.compat import TaskResultDoesNotExist

from .geography import search_key
from .jobs import draw_world
from .models import City, Country, NightlyReport, Picture

CITIES_ON_A_PAGE = 48
LATEST = 12


@require_safe
def home(request: HttpRequest) -> HttpResponse:
    """The world, the progress of the import, the countries."""
    progress = _progress()
    countries = Country.objects.annotate(number=Count("cities")).filter(number__gt=0).order_by("continent", "name")
    context = {
        "progress": progress,
        "countries": countries,
        "latest": _latest(running=progress["running"]),
        "world": Picture.objects.defer("png").filter(name="world").first(),
        "report": NightlyReport.objects.first(),
    }
    return render(request, "atlas/home.html", context)


@require_safe
def country(request: HttpRequest, code: str) -> HttpResponse:
    """A country's map and its cities, the biggest first; `?q=` searches by name."""
    country = get_object_or_404(Country, code=code.upper())
    cities = country.cities.defer("map_png", "alternate_names").select_related("big_city")
    query = request.GET.get("q", "").strip()
    if query:
        cities = cities.filter(Q(name__icontains=query) | Q(search_key__contains=search_key(query) or query))
    page = Paginator(cities, CITIES_ON_A_PAGE).get_page(request.GET.get("page"))
    picture = Picture.objects.defer("png").filter(name=country.code).first()
    return render(request, "atlas/country.html", {"country": country, "page": page, "query": query, "picture": picture})


@require_safe
def city(request: HttpRequest, pk: int) -> HttpResponse:
    """What the job found out about one city."""
    city = get_object_or_404(City.objects.defer("map_png").select_related("country", "big_city"), pk=pk)
    return render(request, "atlas/city.html", {"city": city})


# --- pictures: drawn by jobs, kept in the database ------------------------------------------------------------------------
@require_safe
def city_map(request: HttpRequest, pk: int) -> HttpResponse:
    """A city's small map."""
    return _png(City.objects.filter(pk=pk).values_list("map_png", flat=True).first())


@require_safe
def picture(request: HttpRequest, name: str) -> HttpResponse:
    """The map of the world or of a country."""
    return _png(Picture.objects.filter(name=name).values_list("png", flat=True).first())


def _png(content: bytes | memoryview | None) -> HttpResponse:
    if not content:
        raise Http404("not drawn yet")
    # Pages add the time of the drawing to the address, so a browser may keep what it has.
    return HttpResponse(bytes(content), content_type="image/png", headers={"Cache-Control": "max-age=86400"})


# --- live -----------------------------------------------------------------------------------------------------------------
@require_safe
def progress(request: HttpRequest) -> JsonResponse:
    """How far the import is, and the cities described last. The page asks once a second while the import runs."""
    now = _progress()
    html = render(request, "atlas/_cards.html", {"cities": _latest(running=True)}).content.decode() if now["running"] else ""
    return JsonResponse(now | {"cards": html})


def _progress() -> dict[str, Any]:
    counts = City.objects.aggregate(total=Count("pk"), done=Count("pk", filter=Q(described_at__isnull=False)))
    # The page loads itself again when there is a part that it does not have yet.
    parts = Country.objects.exists() + NightlyReport.objects.exists()
    return counts | {"running": counts["done"] < counts["total"], "parts": parts}


def _latest(*, running: bool) -> list[City]:
    cities = City.objects.described().defer("map_png", "alternate_names").select_related("country", "big_city")
    return list(cities.order_by("-described_at")[:LATEST] if running else cities[:LATEST])


@require_POST
def enqueue_world(request: HttpRequest) -> HttpResponse:
    """Enqueue the drawing of the world: the request ends at once, a worker does the work.

    A script gets the address where it can watch the job, a plain form is sent back to the page.
    """
    result = draw_world.enqueue()
    if request.headers.get("Accept", "").startswith("application/json"):
        return JsonResponse({"watch": reverse("watch", args=[result.id])}, status=202)
    return redirect("home")


@require_safe
def watch(request: HttpRequest, job_id: UUID) -> JsonResponse:
    """The state of a drawing of the world."""
    try:
        result = draw_world.get_result(str(job_id))
    except TaskResultDoesNotExist:
        raise Http404("no such job") from None
    assert isinstance(result, JobResult)  # Django's result, and more: progress, for one
    version = int(timezone.now().timestamp())
    return JsonResponse(
        {
            "finished": result.is_finished,
            "status": result.status.label,
            "progress": result.progress,
            "image": f"{reverse('picture', args=['world'])}?v={version}",
        }
    )
