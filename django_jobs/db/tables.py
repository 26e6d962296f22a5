"""The names of the tables, for raw statements."""

from __future__ import annotations

JOB = "django_jobs_job"
LOCK = "django_jobs_joblock"
ATTEMPT = "django_jobs_jobattempt"
CANCEL = "django_jobs_cancelrequest"
QUEUE = "django_jobs_queue"
WORKER = "django_jobs_worker"
LEADER = "django_jobs_leader"
COUNT = "django_jobs_count"
DELTA = "django_jobs_delta"
TAG = "django_jobs_jobtag"
EDGE = "django_jobs_edge"
ENDED = "django_jobs_ended"
BATCH = "django_jobs_batch"
BATCH_COUNT = "django_jobs_batchcount"
