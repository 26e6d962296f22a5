"""Addresses of jobs, queues and tags."""

from __future__ import annotations

from django.urls import URLPattern

urlpatterns: list[URLPattern] = []
