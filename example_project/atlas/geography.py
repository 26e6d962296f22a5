"""Names, distances and clocks: pure functions, which is what jobs should mostly be made of."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Sequence
from datetime import datetime
from math import acos, cos, degrees, radians, sin
from zoneinfo import ZoneInfo

EARTH_RADIUS_KM = 6371.0
MAX_SCRIPTS = 6

Vector = tuple[float, float, float]


def unit_vector(latitude: float, longitude: float) -> Vector:
    """Return the point on the unit sphere for degrees of latitude and longitude."""
    lat, lon = radians(latitude), radians(longitude)
    return cos(lat) * cos(lon), cos(lat) * sin(lon), sin(lat)


def distance_km(a: Vector, b: Vector) -> float:
    """Return the length of the shortest way on the Earth's surface between two points."""
    return EARTH_RADIUS_KM * acos(max(-1.0, min(1.0, a[0] * b[0] + a[1] * b[1] + a[2] * b[2])))


def nearest(point: Vector, others: Sequence[tuple[int, Vector]]) -> tuple[int, float]:
    """Return the key of the point of `others` that is nearest, and how far it is in km; `others` is not empty.

    The nearest point has the greatest dot product: three multiplications each, and only one arc cosine in all.
    """
    x, y, z = point
    key, vector = max(others, key=lambda other: x * other[1][0] + y * other[1][1] + z * other[1][2])
    return key, distance_km(point, vector)


def compass(start: tuple[float, float], end: tuple[float, float]) -> str:
    """Return the direction from `start` to `end` (latitude, longitude) as one of eight points: "NE"."""
    (lat1, lon1), (lat2, lon2) = start, end
    north = lat2 - lat1
    east = ((lon2 - lon1 + 180) % 360 - 180) * cos(radians((lat1 + lat2) / 2))
    if not north and not east:
        return ""
    vertical = "N" if north > 0 else "S"
    horizontal = "E" if east > 0 else "W"
    steepness = degrees(acos(abs(north) / (north * north + east * east) ** 0.5))  # 0: straight north or south, 90: east or west
    return vertical if steepness < 22.5 else horizontal if steepness > 67.5 else vertical + horizontal


def search_key(name: str) -> str:
    """Return the letters and digits of `name` without case and accents, to compare names by: "Port-Vilà" -> "portvila"."""
    decomposed = unicodedata.normalize("NFKD", name)
    return "".join(char for char in decomposed if char.isalnum()).casefold()


def names_by_script(names: Iterable[str]) -> dict[str, str]:
    """Return the shortest name in each script other than Latin: {"Cyrillic": "Париж", "Hangul": "파리"}.

    The script is the first word of the Unicode name of the first character. Names shorter than two characters are left out.
    """
    found: dict[str, str] = {}
    for raw in names:
        name = unicodedata.normalize("NFC", raw.strip())
        if len(name) < 2 or name[0] < "\u0370":  # the scripts before Greek are Latin
            continue
        script = unicodedata.name(name[0], "").split(" ")[0].capitalize().replace("Cjk", "Han")
        if script in ("", "Latin", "Modifier", "Combining", "Left", "Right", "Fullwidth"):
            continue
        if script not in found or (len(name), name) < (len(found[script]), found[script]):
            found[script] = name
    return dict(sorted(found.items())[:MAX_SCRIPTS])


def clock_ahead_of_sun_minutes(time_zone: str, longitude: float, at: datetime) -> int:
    """Return by how many minutes the clocks of `time_zone` are ahead of the mean sun at `longitude`, at the aware time `at`.

    Four minutes a degree: 0 where the sun is highest at 12:00, 60 where it is highest at 13:00. Between -720 and 720: the date
    line is no matter of the sun.
    """
    offset = at.astimezone(ZoneInfo(time_zone)).utcoffset()
    assert offset is not None
    return round((offset.total_seconds() / 60 - longitude * 4 + 720) % 1440 - 720)
