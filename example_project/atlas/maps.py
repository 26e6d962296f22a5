"""Small maps, drawn with Pillow from nothing but the cities' coordinates: where many people live, a coast line appears.

All maps have a transparent background and colours that are readable on white and on black.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from io import BytesIO
from itertools import pairwise
from math import cos, radians, sqrt

from PIL import Image, ImageDraw

Point = tuple[float, float]  # latitude, longitude

LOCATOR_SIZE = 120
COUNTRY_SIZE = (720, 480)
WORLD_SIZE = (1600, 720)
WORLD_LATITUDES = (78.0, -57.0)  # north and south edge: nobody lives beyond
SMOOTH = 2  # maps are drawn larger by this factor and scaled down, for smooth dots

# Locator maps have a palette of six colours: the first is transparent.
PALETTE = [0, 0, 0, 148, 160, 178, 236, 106, 60, 42, 157, 143, 255, 255, 255, 196, 90, 60]
CLEAR, DOT, MARK, CAPITAL, WHITE, RING = range(6)


@dataclass(frozen=True, slots=True)
class Frame:
    """Turns latitude and longitude into pixels: a rectangle of the Earth, in the middle of an image."""

    west: float
    north: float
    scale: float  # pixels in a degree of latitude
    squeeze: float  # degrees of longitude are shorter than those of latitude by this factor
    left: float
    top: float

    def pixel(self, latitude: float, longitude: float) -> tuple[float, float]:
        """Return x and y."""
        east = (longitude - self.west) % 360  # so that countries that cross 180° stay in one piece
        return self.left + east * self.squeeze * self.scale, self.top + (self.north - latitude) * self.scale


def frame_around(points: Sequence[Point], size: tuple[int, int], margin: int) -> Frame:
    """Return the frame in which all `points` (at least one) fit into an image of `size` pixels."""
    latitudes = [latitude for latitude, _ in points]
    north, south = max(latitudes), min(latitudes)
    west, width = _longitudes(sorted({longitude % 360 for _, longitude in points}))
    squeeze = max(0.2, cos(radians((north + south) / 2)))
    inner_width, inner_height = size[0] - 2 * margin, size[1] - 2 * margin
    scale = min(inner_width / max(width * squeeze, 0.5), inner_height / max(north - south, 0.5))
    left = (size[0] - width * squeeze * scale) / 2
    top = (size[1] - (north - south) * scale) / 2
    return Frame(west=west - 0.0001, north=north, scale=scale, squeeze=squeeze, left=left, top=top)


def _longitudes(sorted_degrees: list[float]) -> tuple[float, float]:
    """Return west edge and width of the smallest arc with all longitudes: the rest of the circle is the widest gap."""
    gaps = [(b - a, b) for a, b in pairwise(sorted_degrees)]
    gaps.append((sorted_degrees[0] + 360 - sorted_degrees[-1], sorted_degrees[0]))
    gap, west = max(gaps)
    return west, 360 - gap


class LocatorMap:
    """Draws one country's cities once, and then a small map for each of them in a fraction of a millisecond."""

    def __init__(self, points: Sequence[Point], capital: Point | None) -> None:
        """`points`: every city of the country, at least one."""
        self._frame = frame_around(points, (LOCATOR_SIZE, LOCATOR_SIZE), margin=10)
        self._base = Image.new("P", (LOCATOR_SIZE, LOCATOR_SIZE), CLEAR)
        self._base.putpalette(PALETTE)
        draw = ImageDraw.Draw(self._base)
        for point in points:
            draw.point(self._frame.pixel(*point), DOT)
            if len(points) < 400:  # a few cities need larger dots to make a country
                x, y = self._frame.pixel(*point)
                draw.rectangle((x, y, x + 1, y + 1), DOT)
        if capital:
            x, y = self._frame.pixel(*capital)
            draw.rectangle((x - 2, y - 2, x + 2, y + 2), CAPITAL, WHITE)

    def png(self, latitude: float, longitude: float) -> bytes:
        """Return the map with one city marked."""
        image = self._base.copy()
        x, y = self._frame.pixel(latitude, longitude)
        draw = ImageDraw.Draw(image)
        draw.ellipse((x - 7, y - 7, x + 7, y + 7), None, RING)
        draw.ellipse((x - 3, y - 3, x + 3, y + 3), MARK, WHITE)
        out = BytesIO()
        image.save(out, "PNG", transparency=CLEAR, bits=4, compress_level=4)
        return out.getvalue()


def sun_colour(minutes: int | None) -> tuple[int, int, int]:
    """Return the colour of a city whose clocks are `minutes` ahead of the sun: blue behind, grey level, orange ahead."""
    if minutes is None:
        return (120, 130, 145)
    part = max(-1.0, min(1.0, minutes / 75))  # full colour from an hour and a quarter on
    level, end = (150, 160, 175), (250, 105, 20) if part > 0 else (25, 110, 250)
    return tuple(round(a + (b - a) * abs(part)) for a, b in zip(level, end, strict=True))  # type: ignore[return-value]


Dot = tuple[float, float, int, int | None]  # latitude, longitude, population, minutes ahead of the sun


def country_map(dots: Sequence[Dot]) -> bytes:
    """Return a country's map as PNG: a dot for each city, its area in proportion to the population."""
    size = (COUNTRY_SIZE[0] * SMOOTH, COUNTRY_SIZE[1] * SMOOTH)
    frame = frame_around([dot[:2] for dot in dots] or [(0.0, 0.0)], size, margin=48 * SMOOTH)
    return _draw(dots, frame, size, smallest=1.6, largest=13)


def world_map(dots: Sequence[Dot], tell: Callable[[int], None] = lambda done: None) -> bytes:
    """Return the map of the world as PNG; `tell` is called now and then with the number of dots drawn."""
    size = (WORLD_SIZE[0] * SMOOTH, WORLD_SIZE[1] * SMOOTH)
    north, south = WORLD_LATITUDES
    scale = size[1] / (north - south)
    frame = Frame(west=-170.0, north=north, scale=scale, squeeze=size[0] / 360 / scale, left=0, top=0)
    return _draw(dots, frame, size, smallest=0.9, largest=7, tell=tell)


def _draw(
    dots: Iterable[Dot],
    frame: Frame,
    size: tuple[int, int],
    *,
    smallest: float,
    largest: float,
    tell: Callable[[int], None] = lambda done: None,
) -> bytes:
    image = Image.new("RGBA", size)
    draw = ImageDraw.Draw(image)
    for number, (latitude, longitude, population, minutes) in enumerate(sorted(dots, key=lambda dot: -dot[2]), 1):
        x, y = frame.pixel(latitude, longitude)
        radius = SMOOTH * min(largest, smallest + sqrt(population) / 1000 * largest / 4)
        draw.ellipse((x - radius, y - radius, x + radius, y + radius), (*sun_colour(minutes), 200))
        if number % 2000 == 0:
            tell(number)
    out = BytesIO()
    image.reduce(SMOOTH).save(out, "PNG", compress_level=6)
    return out.getvalue()
