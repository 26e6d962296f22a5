"""A mail back end that enqueues: each message is sent by a job of its own, and again if the mail server is in trouble."""

from __future__ import annotations

from .backend import EmailBackend

__all__ = ["EmailBackend"]
