"""Read the rows of a CSV file, one at a time: however big it is, a row is all that is in memory."""

from __future__ import annotations

import csv
import io
import threading
from collections.abc import Iterator
from typing import Any, Final

from .cells import unsafe
from .importers import Importer, ImportFailed

_limit_lock = threading.Lock()
#: Characters in one cell.
MAX_CELL: Final = 1_000_000
_PIECE: Final = 65_536


class _Decoded:
    """Lines of text from a binary file, each bounded, and with a plain word about what is no text."""

    def __init__(self, file: Any, encoding: str) -> None:
        self._text = io.TextIOWrapper(file, encoding=encoding, newline="")
        self._encoding = encoding

    def __iter__(self) -> Iterator[str]:
        number = 0
        try:
            while line := self._text.readline(MAX_CELL * 2):
                number += 1
                if "\x00" in line:
                    raise ImportFailed(f"Line {number} has a zero byte: this is no text file.")
                if len(line) >= MAX_CELL * 2:
                    raise ImportFailed(f"Line {number} is longer than {MAX_CELL * 2} characters.")
                yield line
        except UnicodeError:
            where = f"near line {number + 1}"
            raise ImportFailed(f"The file is not encoded as {self._encoding.removesuffix('-sig')} ({where}).") from None


def read_rows(file: Any, importer: Importer) -> tuple[list[str], Iterator[tuple[int, list[str]]]]:
    """Return the form's fields, column by column, and an iterator of (line, cells) over what comes after the header.

    Empty lines are left out. `line` is that on which a row ends, counted from 1. Raises `ImportFailed`, also while iterating.
    """
    lines = iter(_Decoded(file, importer.encoding))
    reader = csv.reader(lines, delimiter=importer.delimiter, strict=True)
    header = _next(reader)
    if header is None:
        raise ImportFailed("The file is empty.")
    fields = importer.check_header(header)
    return fields, _rows(reader, len(header), comes_again="" in fields)


def _rows(reader: Any, width: int, *, comes_again: bool) -> Iterator[tuple[int, list[str]]]:
    while (cells := _next(reader)) is not None:
        if comes_again:  # as this app gave them back
            cells = [unsafe(each) for each in cells]
        if any(cells):
            if len(cells) > width and any(cells[width:]):
                raise ImportFailed(f"Line {reader.line_num} has {len(cells)} cells, the header has {width}.")
            yield reader.line_num, (cells + [""] * width)[:width]


def _next(reader: Any) -> list[str] | None:
    # The limit is one for the whole process: it is raised for a row, and by one thread at a time.
    with _limit_lock:
        before = csv.field_size_limit(MAX_CELL)
        try:
            cells: list[str] | None = next(reader, None)
        except csv.Error as error:
            raise ImportFailed(f"Line {reader.line_num} can't be read: {error}.") from None
        finally:
            csv.field_size_limit(before)
    return cells
