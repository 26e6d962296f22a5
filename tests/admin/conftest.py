"""People with permissions, and their browsers."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from django.contrib.auth.models import Permission, User
from django.test import Client


@pytest.fixture
def login(db: None) -> Callable[..., Client]:
    """Return a function that logs a staff member with just these permissions in."""

    def make(*permissions: str, name: str = "ann") -> Client:
        user = User.objects.create_user(name, is_staff=True)
        for permission in permissions:
            user.user_permissions.add(Permission.objects.get(codename=permission, content_type__app_label="django_jobs"))
        client = Client()
        client.force_login(user)
        return client

    return make


@pytest.fixture
def root(db: None) -> Client:
    """The browser of somebody who may do everything."""
    client = Client()
    client.force_login(User.objects.create_superuser("root"))
    return client
