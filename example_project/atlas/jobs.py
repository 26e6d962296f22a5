"""The jobs of the atlas. `import_atlas` starts it all:

    import_atlas ─┬─> import_countries(codes) ──> describe_city(id)   one a city, some 27,000
                  └─> finish_import ─┬─> draw_country(code)           one a country
                                     ├─> draw_world
                                     └─> nightly_report ──> send_report, and itself, tomorrow

What to copy from here:

* A job takes ids, not objects: it reads what is true when it runs.
* A job may run twice (a worker died between its work and the record of it): doing its work again must do no harm. All of these
  overwrite what they wrote before.
* Where that is not enough, since a job enqueues others or must count exactly once, `atomic=True` commits the job's
  writes, the jobs it enqueued and its own success together, or none of it.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import date, datetime, time, timedelta
from functools import lru_cache
from smtplib import SMTPException
from typing import Any

from django.conf import settings
from django.contrib.humanize.templatetags.humanize import intcomma
from django.core.mail import send_mail
from django.db import connection
from django.db.models import Model
from django.utils import timezone

from django_jobs import Retry, current_job, job

from . import dataset, geography, maps, transfers  # noqa: F401 - transfers: what workers can import
from .models import City, Country, NightlyReport, Picture

COUNTRY_FIELDS = ["name", "continent", "area_km2", "population", "currency"]
CITY_FIELDS = ["name", "country", "latitude", "longitude", "population", "time_zone", "alternate_names", "is_capital"]
CITY_FIELDS += ["described_at"]  # back to null: an import that is repeated describes every city again
DESCRIBED_FIELDS = [
    "search_key",
    "names",
    "sun_minutes",
    "km_to_capital",
    "big_city",
    "km_to_big_city",
    "big_city_direction",
    "map_png",
    "described_at",
]


# --- import: a few big jobs make many small ones ------------------------------------------------------------------------
@job(queue_name="import", atomic=True, priority=20)
def import_atlas() -> int:
    """Import the countries and the cities that others are measured against; enqueue a job for each chunk of the rest."""
    _save(Country, (_country(code) for code in dataset.countries()), COUNTRY_FIELDS)
    records = [record for of_country in dataset.cities().values() for record in of_country]
    _save(City, (_city(record) for record in records if record["population"] >= dataset.BIG_CITY), CITY_FIELDS)
    chunks = list(dataset.chunks())
    import_countries.enqueue_many([(chunk,) for chunk in chunks])
    finish_import.enqueue(total=len(records), since=timezone.now().isoformat())
    return len(chunks)


@job(queue_name="import", atomic=True, priority=10)
def import_countries(codes: list[str]) -> int:
    """Import all cities of some countries, and enqueue a job for each city.

    The cities and their jobs are committed together: a job that runs finds its city, and all others of its country.
    """
    records = [record for code in codes for record in dataset.cities()[code]]
    _save(City, (_city(record) for record in records), CITY_FIELDS)
    describe_city.enqueue_many([(record["geonameid"],) for record in records])  # one statement, not thousands
    return len(records)


def _country(code: str) -> Country:
    record = dataset.countries()[code]
    return Country(
        code=code,
        name=record["name"],
        continent=dataset.continents()[record["continentcode"]],
        area_km2=record["areakm2"],
        population=record["population"],
        currency=record["currencyname"],
    )


def _city(record: dict[str, Any]) -> City:
    capital = dataset.capital(record["countrycode"])
    return City(
        id=record["geonameid"],
        name=record["name"],
        country_id=record["countrycode"],
        latitude=record["latitude"],
        longitude=record["longitude"],
        population=record["population"],
        time_zone=record["timezone"],
        alternate_names=record["alternatenames"],
        is_capital=capital is record,
    )


def _save(model: type[Model], rows: Iterable[Model], fields: list[str]) -> None:
    """Insert rows, or bring them up to date: so an import can be repeated, whole or in part."""
    named = connection.features.supports_update_conflicts_with_target  # MariaDB finds the conflicting key by itself
    unique = [model._meta.pk.name] if named else None
    model._default_manager.bulk_create(rows, update_conflicts=True, unique_fields=unique, update_fields=fields, batch_size=1000)


# --- one job a city: small, quick, safe to repeat -----------------------------------------------------------------------
@job(queue_name="cities", timeout=30, tags=["import"])
def describe_city(city_id: int) -> None:
    """Work out what the site shows of a city: names, distances, its clock and the sun, a map."""
    city = City.objects.defer("map_png").get(pk=city_id)
    country = _surroundings(city.country_id)
    now = timezone.now()
    here = geography.unit_vector(city.latitude, city.longitude)

    city.search_key = geography.search_key(city.name)
    city.names = geography.names_by_script(city.alternate_names)
    city.sun_minutes = geography.clock_ahead_of_sun_minutes(city.time_zone, city.longitude, now)
    city.km_to_capital = geography.distance_km(here, country.capital) if country.capital else None
    places, vectors = _big_cities()
    if city_id in places:  # not itself
        vectors = [(pk, vector) for pk, vector in vectors if pk != city_id]
    if vectors:
        city.big_city_id, city.km_to_big_city = geography.nearest(here, vectors)
        city.big_city_direction = geography.compass((city.latitude, city.longitude), places[city.big_city_id])
    city.map_png = country.locator.png(city.latitude, city.longitude)
    city.described_at = now
    city.save(update_fields=DESCRIBED_FIELDS)


class _Surroundings:
    """What all cities of one country share."""

    def __init__(self, code: str) -> None:
        rows = list(City.objects.filter(country=code).values_list("latitude", "longitude", "is_capital"))
        capital = next(((latitude, longitude) for latitude, longitude, is_capital in rows if is_capital), None)
        self.capital = geography.unit_vector(*capital) if capital else None
        self.locator = maps.LocatorMap([row[:2] for row in rows], capital)


# A worker process runs thousands of these jobs: what they share is worked out once. The cities do not move between two
# imports of the same package; a site whose data changes would put a version into the key.
@lru_cache(maxsize=300)
def _surroundings(code: str) -> _Surroundings:
    return _Surroundings(code)


@lru_cache(maxsize=1)
def _big_cities() -> tuple[dict[int, maps.Point], list[tuple[int, geography.Vector]]]:
    rows = City.objects.filter(population__gte=dataset.BIG_CITY).values_list("id", "latitude", "longitude")
    places = {pk: (latitude, longitude) for pk, latitude, longitude in rows}
    return places, [(pk, geography.unit_vector(*place)) for pk, place in places.items()]


# --- when all cities are done -------------------------------------------------------------------------------------------
@job(queue_name="import", atomic=True, max_attempts=1000)
def finish_import(total: int, since: str) -> str:
    """Enqueue what needs all cities, once `total` of them have been described `since` then.

    Looks again and again, the more often the less is left, and keeps no worker busy in between. `max_attempts` ends the
    waiting if a city never comes.
    """
    left = total - City.objects.filter(described_at__gte=since).count()
    if left > 0:
        raise Retry(f"{left} cities are left", after=min(10, 1 + left / 1000))
    draw_country.enqueue_many([(code,) for code in dataset.cities()])
    draw_world.enqueue()
    nightly_report.enqueue(timezone.localdate().isoformat())
    return "all cities are described"


@job(queue_name="maps")
def draw_country(code: str) -> None:
    """Draw a country's map."""
    dots = list(City.objects.filter(country=code).values_list("latitude", "longitude", "population", "sun_minutes"))
    _save_picture(code, maps.country_map(dots))


@job(queue_name="maps", priority=50, timeout=120)
def draw_world() -> None:
    """Draw the map of the world, and tell how far it is: the page shows it."""
    dots = list(City.objects.order_by().values_list("latitude", "longitude", "population", "sun_minutes"))

    def tell(done: int) -> None:
        if context := current_job():  # None where the function is called outside a job, in a test for example
            context.progress(done, len(dots), "drawing")

    _save_picture("world", maps.world_map(dots, tell))


def _save_picture(name: str, png: bytes) -> None:
    Picture.objects.update_or_create(name=name, defaults={"png": png, "drawn_at": timezone.now()})


# --- every night --------------------------------------------------------------------------------------------------------
@job(queue_name="reports", atomic=True)
def nightly_report(day: str) -> None:
    """Write the report of a day (ISO date), enqueue its mail, and the report of the next night, all in one transaction."""
    today = date.fromisoformat(day)
    _, is_new = NightlyReport.objects.update_or_create(day=today, defaults={"text": _report_text()})
    send_report.enqueue(day)
    if is_new:  # a report that is written again starts no second chain
        tomorrow = today + timedelta(days=1)
        two_at_night = timezone.make_aware(datetime.combine(tomorrow, time(2)))
        nightly_report.using(run_after=two_at_night).enqueue(tomorrow.isoformat())


def _report_text() -> str:
    cities = City.objects.described().select_related("country")
    far = cities.filter(km_to_capital__isnull=False).order_by("-km_to_capital").first()
    lonely = cities.filter(km_to_big_city__isnull=False).order_by("-km_to_big_city").first()
    late = cities.filter(sun_minutes__isnull=False).order_by("-sun_minutes").first()
    lines = [f"{intcomma(cities.count())} cities in {Country.objects.count()} countries."]
    if far:
        lines.append(f"Farthest from its capital: {far} ({far.country}), {intcomma(round(far.km_to_capital or 0))} km.")
    if lonely:
        km = intcomma(round(lonely.km_to_big_city or 0))
        lines.append(f"Farthest from a city of a million: {lonely} ({lonely.country}), {km} km.")
    if late:
        lines.append(f"Clocks farthest ahead of the sun: {late} ({late.country}), by {late.sun_minutes} minutes.")
    return "\n".join(lines)


@job(queue_name="mail", retry_for=(SMTPException, OSError), backoff=[10, 60, 300])
def send_report(day: str) -> None:
    """Mail a day's report. A mail server that can't be reached is tried again; any other error is final."""
    report = NightlyReport.objects.get(day=day)
    send_mail(f"Atlas: report of {day}", report.text, None, [settings.ATLAS_REPORT_TO])
