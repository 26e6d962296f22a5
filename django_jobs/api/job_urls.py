"""Addresses of jobs, batches, queues and tags."""

from __future__ import annotations

from django.urls import URLPattern

from . import batches, bulk, claims, job_actions, jobs, one_job, queue_contents, queues, tags
from .routes import routes

urlpatterns: list[URLPattern] = [
    *routes("jobs/", jobs.JobListView.as_view(), "jobs"),
    *routes("jobs/timed-out/", jobs.TimedOutView.as_view(), "jobs-timed-out"),
    *(pattern for verb in bulk.VERBS for pattern in routes(f"jobs/{verb}/", bulk.bulk_view(verb).as_view(), f"jobs-{verb}")),
    *routes("jobs/<uuid:pk>/", one_job.JobView.as_view(), "job"),
    *routes("jobs/<uuid:pk>/status/", jobs.JobStatusView.as_view(), "job-status"),
    *routes("jobs/<uuid:pk>/output/", one_job.JobOutputView.as_view(), "job-output"),
    *routes("jobs/<uuid:pk>/heartbeat/", one_job.HeartbeatView.as_view(), "job-heartbeat"),
    *routes("jobs/<uuid:pk>/attempts/", jobs.JobAttemptsView.as_view(), "job-attempts"),
    *routes("jobs/<uuid:pk>/requeue/", job_actions.RequeueView.as_view(), "job-requeue"),
    *routes("jobs/<uuid:pk>/cancel/", job_actions.CancelView.as_view(), "job-cancel"),
    *routes("jobs/<uuid:pk>/done/", job_actions.DoneView.as_view(), "job-done"),
    *routes("jobs/<uuid:pk>/run-now/", job_actions.RunNowView.as_view(), "job-run-now"),
    *routes("queues/", queues.QueueListView.as_view(), "queues"),
    *routes("queues/<str:name>/", queues.QueueView.as_view(), "queue"),
    *routes("queues/<str:name>/size/", queue_contents.SizeView.as_view(), "queue-size"),
    *routes("queues/<str:name>/job-ids/", queue_contents.JobIdsView.as_view(), "queue-job-ids"),
    *routes("queues/<str:name>/claim/", claims.ClaimView.as_view(), "queue-claim"),
    *routes("queues/<str:name>/pause/", queues.PauseView.as_view(), "queue-pause"),
    *routes("queues/<str:name>/resume/", queues.ResumeView.as_view(), "queue-resume"),
    *routes("batches/", batches.BatchListView.as_view(), "batches"),
    *routes("batches/<uuid:pk>/", batches.BatchView.as_view(), "batch"),
    *routes("batches/<uuid:pk>/jobs/", batches.BatchJobsView.as_view(), "batch-jobs"),
    *routes("batches/<uuid:pk>/cancel/", batches.BatchCancelView.as_view(), "batch-cancel"),
    *routes("batches/<uuid:pk>/requeue-failed/", batches.BatchRequeueView.as_view(), "batch-requeue-failed"),
    *routes("tags/<str:tag>/", tags.TagView.as_view(), "tag"),
]
