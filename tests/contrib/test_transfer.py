"""Files in and out by jobs: every row once, bad rows told, links that expire."""

from __future__ import annotations

import csv
import io
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django import forms
from django.contrib.auth.models import Group, Permission, User
from django.core.exceptions import ImproperlyConfigured
from django.core.files.base import ContentFile
from django.core.files.uploadedfile import SimpleUploadedFile
from django.db import OperationalError
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from django_jobs.contrib.transfer import importers as importers_module
from django_jobs.contrib.transfer import tasks
from django_jobs.contrib.transfer.admin import _SIGNER, ImportForm
from django_jobs.contrib.transfer.conf import transfer_settings
from django_jobs.contrib.transfer.importers import Importer, ImportFailed, importer
from django_jobs.contrib.transfer.models import Export, Import, ImportChunk, State
from django_jobs.contrib.transfer.starting import cancel_import, export_model, start_export, start_import
from django_jobs.exceptions import InvalidOption
from django_jobs.lifecycle import control
from django_jobs.models import Job
from django_jobs.testing import run_jobs
from tests.support.jobs import claim_jobs

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def _files(settings: Any, tmp_path: Path) -> None:
    settings.MEDIA_ROOT = tmp_path


class UserForm(forms.ModelForm):
    class Meta:
        model = User
        fields = ["username", "email", "first_name"]


@importer
class Users(Importer):
    """Users of the site"""

    name = "test_users"
    form_class = UserForm
    columns = {"Login": "username", "E-mail": "email", "Name": "first_name"}
    chunk_rows = 3


@importer
class Semicolons(Importer):
    """Groups, as a spreadsheet of Latin-1 writes them"""

    name = "test_groups"

    class form_class(forms.ModelForm):  # noqa: N801 - the attribute's name
        class Meta:
            model = Group
            fields = ["name"]

    delimiter = ";"
    encoding = "latin-1"
    permission = "auth.add_group"


def content(text: str | bytes, name: str = "users.csv") -> ContentFile[Any]:
    return ContentFile(text if isinstance(text, bytes) else text.encode(), name=name)


def imported(text: str | bytes, name: str = "test_users") -> Import:
    found = start_import(name, content(text))
    run_jobs()
    found.refresh_from_db()
    return found


def table(file: Any) -> list[list[str]]:
    with file.open("rb") as opened:
        return list(csv.reader(io.StringIO(opened.read().decode())))


def test_good_rows_are_imported_once_and_bad_ones_told_with_their_lines() -> None:
    text = "\ufeffLogin,E-mail,Name\n" + "".join(f"u{number},u{number}@x.org,N {number}\n" for number in range(7))
    text += 'bad name!,x@x.org,B\n\nu3,double@x.org,D\nq,not-a-mail,"=cmd\nin two lines"\n'
    found = imported(text)
    assert (found.state, found.total, found.good, found.bad, found.error) == (State.FINISHED, 10, 7, 3, "")
    assert sorted(User.objects.values_list("username", flat=True)) == [f"u{number}" for number in range(7)]
    rows = table(found.errors)
    assert rows[0] == ["Login", "E-mail", "Name", "line", "error"]
    assert [row[0] for row in rows[1:]] == ["bad name!", "u3", "q"]
    assert [row[3] for row in rows[1:]] == ["9", "11", "13"]
    assert "username:" in rows[1][4]
    assert rows[3][2] == "'=cmd\nin two lines", "no spreadsheet runs it"
    assert ImportChunk.objects.filter(rows__isnull=False).count() == 0
    assert Job.objects.filter(batch__isnull=False).count() == 4


def test_a_chunk_that_runs_again_imports_nothing_twice() -> None:
    found = start_import("test_users", content("Login\na\nb\n"))
    run_jobs(limit=1)
    chunk = ImportChunk.objects.get()
    attempts = claim_jobs()
    assert [attempt.task for attempt in attempts] == [tasks.import_chunk.module_path]
    control.requeue([attempts[0].job_id])
    assert tasks.import_chunk.call(chunk.pk) == 2
    assert tasks.import_chunk.call(chunk.pk) == 2
    assert User.objects.count() == 2
    assert found.pk


def test_another_delimiter_and_encoding() -> None:
    assert imported("name\nK\xf6ln\n".encode("latin-1"), "test_groups").good == 1
    assert Group.objects.get().name == "K\xf6ln"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is empty"),
        ("Login,E-mail,Name\n", "a header and no rows"),
        ("Logn\nx\n", "no column 'Logn'. Did you mean 'Login'?"),
        ("E-mail\nx\n", "no column 'Login'"),
        ("Login,Login\na,b\n", "is there twice"),
        ("Login\nx\x00y\n", "zero byte"),
        (b"Login\nK\xf6ln\n", "not encoded as utf-8"),
        (b"\x89PNG\r\n\x1a\n\x00\x00\x00", "not encoded as utf-8"),
        ('Login\n"never closed\n', "can't be read"),
        ("Login\na,b,c\n", "has 3 cells, the header has 1"),
        ("Login\n" + "x" * 2_000_001 + "\n", "longer than"),
        ("Login\n" + "x" * 1_000_001 + "\n", "can't be read: field larger"),
    ],
)
def test_a_file_that_can_not_be_read_is_told_and_imports_nothing(text: str | bytes, said: str) -> None:
    found = imported(text)
    assert found.state == State.FAILED
    assert said in found.error
    assert not User.objects.exists()
    assert not ImportChunk.objects.exists()
    assert csv.field_size_limit() == 131_072, "the limit of the process is as it was"


def test_an_importer_that_is_unknown_or_gone() -> None:
    with pytest.raises(ImportFailed, match="no importer"):
        start_import("nobody", content("x"))
    with pytest.raises(ValueError, match="letters"):
        importer(type("Bad", (Importer,), {"name": "no name"}))
    with pytest.raises(ValueError, match="already"):
        importer(type("Other", (Importer,), {"name": "test_users"}))


def test_nothing_of_the_name_of_a_file_becomes_a_path() -> None:
    found = start_import("test_users", content("Login\na\n", "../../etc/passwd"))
    assert found.name == "passwd"
    assert found.file.name.startswith("django_jobs_transfer/")
    assert ".." not in found.file.name


def test_a_cancelled_import_stays_so() -> None:
    found = start_import("test_users", content("Login\na\nb\nc\nd\n"))
    run_jobs(limit=1)
    assert cancel_import(found, by="ann")
    assert not cancel_import(found)
    run_jobs()
    found.refresh_from_db()
    assert found.state == State.CANCELLED
    assert not User.objects.exists()


def test_chunks_that_failed_may_be_requeued(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: Importer, form: Any) -> None:
        raise RuntimeError("the disk is full")

    monkeypatch.setattr(Users, "save", broken)
    found = imported("Login\na\n")
    assert found.state == State.FAILED
    assert "1 of 1 chunks" in found.error
    monkeypatch.undo()
    control.requeue(list(Job.objects.filter(status="failed").values_list("id", flat=True)))
    run_jobs()
    found.refresh_from_db()
    assert (found.state, found.good, found.error) == (State.FINISHED, 1, "")


# --- export ---


def test_an_export_is_written_in_pieces_and_goes_when_it_expires(settings: Any, tmp_path: Path) -> None:
    users = [User(username=f"u{number:04}", email="=HYPERLINK(1)" if number == 1 else "") for number in range(1_201)]
    User.objects.bulk_create(users)
    found = start_export(User.objects.order_by("username"), ["username", "email", "get_full_name"])
    run_jobs()
    found.refresh_from_db()
    assert (found.state, found.rows) == (State.FINISHED, 1_201)
    rows = table(found.file)
    assert rows[0] == ["username", "email", "get_full_name"]
    assert rows[2] == ["u0001", "'=HYPERLINK(1)", ""]
    assert len(rows) == 1_202
    assert found.expires_at is not None
    assert timedelta(days=6) < found.expires_at - timezone.now() <= timedelta(days=7)
    assert run_jobs(scheduled=True) == 1
    assert not Export.objects.exists()
    assert not list(tmp_path.rglob("*.csv"))


def test_fields_that_there_are_not_and_all_of_a_model(settings: Any) -> None:
    Group.objects.create(name="-1")
    with pytest.raises(InvalidOption, match="has no 'nme'"):
        start_export(Group.objects.all(), ["nme"])
    settings.DJANGO_JOBS_TRANSFER = {"FORMULAS": True, "KEEP": "1h"}
    with pytest.raises(InvalidOption, match="say which"):
        start_export(User.objects.all(), [])
    export_model.enqueue("auth.group", ["id", "name"])
    run_jobs()
    found = Export.objects.get()
    assert table(found.file)[1][1] == "-1"
    settings.DJANGO_JOBS_TRANSFER = {"KEP": 1}
    with pytest.raises(ImproperlyConfigured, match="KEP"):
        transfer_settings()


# --- pages ---


@pytest.fixture
def ann() -> Client:
    user = User.objects.create_user("ann", is_staff=True)
    for name in ("add_import", "view_import", "view_export", "view_group"):
        user.user_permissions.add(Permission.objects.get(codename=name))
    client = Client()
    client.force_login(user)
    return client


def test_a_file_is_sent_by_a_page_and_its_errors_come_back(ann: Client) -> None:
    add = reverse("admin:django_jobs_transfer_import_add")
    text = ann.get(add).content.decode()
    assert "Users of the site" in text
    assert "Groups, as" not in text, "an importer with a permission that she has not"
    answer = ann.post(add, {"importer": "test_users", "file": SimpleUploadedFile("u.csv", b"Login\na\n!\n")})
    found = Import.objects.get()
    page = reverse("admin:django_jobs_transfer_import_change", args=[found.pk])
    assert answer.headers["Location"] == page
    assert ann.get(page).headers["Refresh"]
    run_jobs()
    response = ann.get(page)
    assert "Refresh" not in response.headers
    assert "1 of 2 rows, 1 with errors" in response.content.decode()
    errors = ann.get(reverse("admin:django_jobs_transfer_import_errors", args=[found.pk]))
    assert b"!,3," in b"".join(errors.streaming_content)
    assert ann.get(reverse("admin:django_jobs_transfer_import_changelist")).status_code == 200
    assert found.created_by == User.objects.get(username="ann")


def test_what_is_too_large_or_nothing_is_refused_by_the_form(settings: Any) -> None:
    settings.DJANGO_JOBS_TRANSFER = {"MAX_BYTES": 5}
    root = User.objects.create_superuser("root")
    form = ImportForm({"importer": "test_users"}, {"file": SimpleUploadedFile("a", b"123456")}, user=root)
    assert "file" in form.errors
    assert "file" in ImportForm({"importer": "test_users"}, {"file": SimpleUploadedFile("a", b"")}, user=root).errors
    assert "importer" in ImportForm({"importer": "os.system"}, {"file": SimpleUploadedFile("a", b"1")}, user=root).errors


def test_pages_are_for_those_who_may(ann: Client, client: Client) -> None:
    found = start_import("test_users", content("Login\n!\n"))
    run_jobs()
    nobody = Client()
    nobody.force_login(User.objects.create_user("bob", is_staff=True))
    for name in ("add", "change", "errors", "cancel"):
        url = reverse(f"admin:django_jobs_transfer_import_{name}", args=[] if name == "add" else [found.pk])
        assert nobody.get(url).status_code == 403
        assert client.get(url).status_code == 302
    assert ann.get(reverse("admin:django_jobs_transfer_import_cancel", args=[found.pk])).status_code == 403, "GET changes nothing"


def test_a_link_is_for_who_made_the_export_as_long_as_it_may_be_seen(ann: Client) -> None:
    user = User.objects.get(username="ann")
    Group.objects.create(name="g")
    found = start_export(Group.objects.all(), ["name"], user=user)
    assert found.keys
    run_jobs()
    listing = ann.get(reverse("admin:django_jobs_transfer_export_changelist")).content.decode()
    url = reverse("admin:django_jobs_transfer_export_download", args=[_SIGNER.sign(str(found.pk))])
    assert url.split(":")[0] in listing
    response = ann.get(url)
    assert b"".join(response.streaming_content).splitlines() == [b"name", b"g"]
    assert "auth-group-" in response.headers["Content-Disposition"]
    assert ann.get(url[:-2] + "x/").status_code == 404, "forged"
    other = Client()
    other.force_login(User.objects.create_user("bob", is_staff=True))
    assert other.get(url).status_code == 403
    user.user_permissions.remove(Permission.objects.get(codename="view_group"))
    assert ann.get(url).status_code == 403, "she may not see groups any more"
    Export.objects.update(expires_at=timezone.now() - timedelta(seconds=1))
    root = Client()
    root.force_login(User.objects.create_superuser("root"))
    assert root.get(url).status_code == 404


def test_rows_that_came_back_are_mended_and_imported_again() -> None:
    found = imported("Login,Name\n!,=2+2\nok,x\n")
    text = found.errors.read().decode()
    assert text.splitlines()[0] == "Login,Name,line,error"
    again = imported(text.replace("!", "mended", 1))
    assert (again.state, again.good, again.bad) == (State.FINISHED, 1, 0), again.error
    assert User.objects.get(username="mended").first_name == "=2+2", "as it was meant"


def test_a_lost_race_is_no_bad_row(monkeypatch: pytest.MonkeyPatch) -> None:
    def lost(self: Importer, form: Any) -> None:
        raise OperationalError(1213, "Deadlock found")

    monkeypatch.setattr(Users, "save", lost)
    found = start_import("test_users", content("Login\na\n"))
    run_jobs()
    assert Job.objects.get(task=tasks.import_chunk.module_path).status == "scheduled", "it is tried again"
    monkeypatch.undo()
    run_jobs(scheduled=True)
    found.refresh_from_db()
    assert (found.state, found.good, found.bad) == (State.FINISHED, 1, 0)


def test_an_importer_that_is_gone_ends_the_import(monkeypatch: pytest.MonkeyPatch) -> None:
    found = start_import("test_users", content("Login\na\n"))
    run_jobs(limit=2)
    monkeypatch.delitem(importers_module._importers, "test_users")
    run_jobs()
    found.refresh_from_db()
    assert found.state == State.FAILED
    assert "no importer" in found.error


@pytest.mark.django_db(transaction=True)
def test_files_go_with_their_rows(tmp_path: Path) -> None:
    imported("Login\n!\n").delete()
    export = start_export(User.objects.all(), ["username"])
    run_jobs()
    Export.objects.get(pk=export.pk).delete()
    assert not list(tmp_path.rglob("*.csv"))
