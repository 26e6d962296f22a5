"""A small site that does its work in background jobs: an atlas of the world's cities.

Read `atlas/jobs.py` first: it is what django_jobs looks like in use.
"""
