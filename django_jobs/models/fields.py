"""Indexes and constraints that are partial where the database can, and whole where it can't."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.db import models

if TYPE_CHECKING:
    from django.core.checks import CheckMessage
    from django.db.backends.base.schema import BaseDatabaseSchemaEditor
    from django.db.backends.ddl_references import Statement


class PartialIndex(models.Index):
    """An index with a condition; on MariaDB and MySQL, which have none, the condition's columns lead it instead.

    `lead`: the columns that the condition speaks of, put in front where the condition can't be kept.
    """

    def __init__(self, *expressions: Any, lead: tuple[str, ...] = (), **kwargs: Any) -> None:
        self.lead = tuple(lead)
        super().__init__(*expressions, **kwargs)

    def deconstruct(self) -> tuple[str, Any, dict[str, Any]]:
        """Keep `lead` in the migration."""
        path, args, kwargs = super().deconstruct()
        if self.lead:
            kwargs["lead"] = self.lead
        return path, args, kwargs

    def _whole(self) -> models.Index:
        return models.Index(fields=[*self.lead, *self.fields], name=self.name)

    def create_sql(
        self, model: type[models.Model], schema_editor: BaseDatabaseSchemaEditor, using: str = "", **kwargs: Any
    ) -> Statement:
        """Return the CREATE INDEX that this database can hold."""
        if schema_editor.connection.features.supports_partial_indexes:
            return super().create_sql(model, schema_editor, using=using, **kwargs)
        return self._whole().create_sql(model, schema_editor, using=using, **kwargs)

    def check(self, model: type[models.Model], connection: Any) -> list[CheckMessage]:
        """Leave out Django's warning that the condition is ignored: it is replaced, not ignored."""
        return [message for message in super().check(model, connection) if message.id != "models.W037"]


class PartialUnique(models.UniqueConstraint):
    """A unique constraint with a condition. Where the database has none, the migration adds a unique generated column instead."""

    def check(self, model: type[models.Model], connection: Any) -> list[CheckMessage]:
        """Leave out Django's warning that the constraint is not created: see the migration."""
        return [message for message in super().check(model, connection) if message.id != "models.W036"]
