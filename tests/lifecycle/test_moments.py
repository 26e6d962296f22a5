"""Moments that some database stores and Python can't read back are refused by every verb that takes one."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest

from django_jobs.exceptions import InvalidOption
from django_jobs.lifecycle import control
from django_jobs.models import Queue
from tests.support.jobs import make_job

pytestmark = pytest.mark.django_db
MOMENTS = [
    datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=14))),
    datetime(1969, 12, 31, tzinfo=UTC),
    datetime(9999, 12, 31, 23, tzinfo=timezone(timedelta(hours=-14))),
]


@pytest.mark.parametrize("field", ["run_after", "start_by"])
@pytest.mark.parametrize("moment", MOMENTS)
def test_edit_refuses_them(moment: datetime, field: str) -> None:
    job = make_job()
    with pytest.raises(InvalidOption, match=rf"^{field}: .* is out of range"):
        control.edit([job.id], **{field: moment})


@pytest.mark.parametrize("moment", [MOMENTS[0], MOMENTS[2]])
def test_a_pause_refuses_them(moment: datetime) -> None:
    with pytest.raises(InvalidOption, match=r"^until: .* is out of range"):
        control.pause_queue("mail", until=moment)
    assert not Queue.objects.exists()
