"""Benchmarks: what django_jobs reaches, as a share of what the same database server can do at all in the same run."""
