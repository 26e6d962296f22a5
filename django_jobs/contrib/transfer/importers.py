"""Importers: what a site declares about the files that it takes."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, TypeVar

from django import forms

from ...exceptions import JobsError

I = TypeVar("I", bound="type[Importer]")  # noqa: E741 - short for a signature

_importers: dict[str, type[Importer]] = {}


#: What an import adds to the rows that it gives back, and leaves out when they come again.
TOLD = ("line", "error")


class ImportFailed(JobsError):
    """A file that can't be imported at all; the message says why, for whoever sent it."""


class Importer:
    """How rows of a file become objects. Subclass it, say `name` and `form_class`, and decorate it with `importer`.

    Every row is cleaned by the form, as if somebody had typed it: `columns` maps a header of the file to a field of the form
    (without it the headers are the fields' names). A row that the form refuses, or whose saving fails, is told with its errors,
    and does not disturb the others.
    """

    #: What an import names; letters, digits and `_`.
    name: ClassVar[str] = ""
    form_class: ClassVar[Any]  # a form
    columns: ClassVar[Mapping[str, str]] = {}
    delimiter: ClassVar[str] = ","
    #: A byte order mark at the beginning is left out.
    encoding: ClassVar[str] = "utf-8-sig"
    #: Rows in one job.
    chunk_rows: ClassVar[int] = 500
    queue_name: ClassVar[str] = "default"
    #: The permission that a user needs beside `add_import`, such as "shop.add_order"; empty: none.
    permission: ClassVar[str] = ""

    def fields(self) -> Mapping[str, str]:
        """Return the header for each column that a file may have, with the field that it fills."""
        return self.columns or {name: name for name in self.form_class.base_fields}

    def required(self) -> set[str]:
        """Return the headers without which no row could be good."""
        needed = {name for name, field in self.form_class.base_fields.items() if field.required and field.initial is None}
        return {header for header, field in self.fields().items() if field in needed}

    def check_header(self, header: Sequence[str]) -> list[str]:
        """Return the form's field for each cell of the first row, "" for what an import has added. Raises `ImportFailed`."""
        known = self.fields()
        names = [cell.strip() for cell in header]
        added = len(TOLD) if tuple(names[-len(TOLD) :]) == TOLD and not set(TOLD) & set(known) else 0
        names = names[: len(names) - added]
        for name in names:
            if name not in known:
                near = difflib.get_close_matches(name, known, 1)
                hint = f" Did you mean {near[0]!r}?" if near else ""
                raise ImportFailed(f"There is no column {name[:60]!r}.{hint} The columns are {', '.join(known)}.")
            if names.count(name) > 1:
                raise ImportFailed(f"The column {name!r} is there twice.")
        if missing := sorted(self.required() - set(names)):
            raise ImportFailed(f"The file has no column {', '.join(map(repr, missing))}.")
        return [*(known[name] for name in names), *[""] * added]

    def save(self, form: Any) -> None:
        """Store a row that the form has found to be good: a ModelForm saves itself."""
        form.save()

    def form(self, data: Mapping[str, str]) -> forms.BaseForm:
        """Return the form for a row; give it an instance here to change objects that there are."""
        form: forms.BaseForm = self.form_class(data)
        return form


def importer(cls: I) -> I:
    """Make an importer known, under its `name`. Nothing else can be named by an import."""
    if not cls.name.isidentifier():
        raise ValueError(f"{cls.__name__}.name must be letters, digits and _, not {cls.name!r}.")
    known = _importers.get(cls.name)
    if known is not None and known.__qualname__ != cls.__qualname__:
        raise ValueError(f"There is an importer {cls.name!r} already: {known.__qualname__}.")
    _importers[cls.name] = cls
    return cls


def importers() -> dict[str, type[Importer]]:
    """Return the importers by name."""
    return dict(_importers)


def find_importer(name: str) -> Importer:
    """Return the importer of this name. Raises `ImportFailed`."""
    try:
        return _importers[name]()
    except KeyError:
        raise ImportFailed(f"There is no importer {name!r} here (any more).") from None
