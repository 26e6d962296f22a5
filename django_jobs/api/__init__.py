"""The HTTP API: jobs and queues for programs in any language. Built on REST framework; mount `django_jobs.api.urls`."""
