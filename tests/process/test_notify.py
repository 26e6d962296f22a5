"""Notices of failures that nobody was left to tell of."""

from __future__ import annotations

from django.contrib.auth.models import User

from django_jobs import as_user
from django_jobs.contrib.notify.models import Notice
from django_jobs.statuses import Status
from tests.process.conftest import Site, Start
from tests.project import jobs
from tests.support.jobs import make_job
from tests.support.worker import ended, until

SETTINGS = """
import django
DJANGO_JOBS_NOTIFY = {"LOOK_EVERY": "1h"}
if django.VERSION < (6, 1):
    EMAIL_BACKEND = "django.core.mail.backends.locmem.EmailBackend"
"""


def test_a_death_is_noticed_and_so_is_what_failed_while_nobody_was_there(start: Start, site: Site) -> None:
    environment = site(name="notified_site", settings=SETTINGS)
    ada = User.objects.create_user("ada", "ada@example.com")
    # Its worker told nobody: it died together with the failure.
    make_job(Status.FAILED, task="shop.tasks.bill", context={"user": str(ada.pk)}, error_class="builtins.OSError")
    start("--threads=1", env=environment).works()
    until(lambda: Notice.objects.filter(user=ada, group__task="shop.tasks.bill").exists(), "a look when a worker came")
    with as_user(ada):
        job = jobs.die.using(max_attempts=1).enqueue("kill")
    assert ended(job)[0].status == Status.FAILED
    until(lambda: Notice.objects.filter(user=ada, group__task=jobs.die.module_path).exists(), "a notice of the death")
    notices = Notice.objects.filter(user=ada)
    assert sorted(notices.values_list("count", flat=True)) == [1, 1]
    until(lambda: notices.filter(mailed_count=1).count() == 2, "both mails")
