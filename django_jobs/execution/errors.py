"""Turn any exception into text that can be stored, whatever it does when it is looked at."""

from __future__ import annotations

import hashlib
import os
import sysconfig
import traceback
from types import TracebackType
from typing import Final

from .. import conf, serializers
from ..outcomes import ErrorInfo

#: Frames kept of one traceback: those of a RecursionError say the same a thousand times.
_MAX_FRAMES: Final = 100
#: Exceptions of one chain of causes that are shown.
_MAX_CHAIN: Final = 20
_PACKAGE: Final = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_OWN: Final = os.path.join(_PACKAGE, "execution") + os.sep
_LIBRARIES: Final = tuple(
    {path + os.sep for name in ("stdlib", "platstdlib", "purelib", "platlib") if (path := sysconfig.get_path(name))}
)


def describe(error: BaseException) -> ErrorInfo:
    """Return `error` as text: class, message, traceback (from the task on), fingerprint. Never raises."""
    name = class_path(type(error))
    try:
        return _describe(error, name)
    except BaseException as problem:
        return ErrorInfo(name, f"<this error can't be shown: that raised {type(problem).__name__}>", "", name[-16:])


def _describe(error: BaseException, name: str) -> ErrorInfo:
    settings = conf.jobs_settings()
    first = _without_own_frames(error.__traceback__)
    return ErrorInfo(
        exception_class=name,
        message=serializers.clean_text(message_of(error), settings.max_message_chars),
        traceback=serializers.clean_text(_format(error, first), settings.max_traceback_chars),
        fingerprint=_fingerprint(name, first),
    )


def class_path(cls: type[BaseException]) -> str:
    """Return the dotted path of a class; that of one made in a function has `<locals>` in it and can't be imported."""
    try:
        return serializers.clean_text(f"{cls.__module__}.{cls.__qualname__}", 255)
    except Exception:  # a metaclass may answer anything
        return "builtins.BaseException"


def message_of(error: BaseException) -> str:
    """Return `str(error)`, or a placeholder that says why there is none."""
    try:
        return str(error)
    except BaseException as problem:
        return f"<the text of this {type(error).__name__} can't be shown: its __str__ raised {type(problem).__name__}>"


def _format(error: BaseException, first: TracebackType | None) -> str:
    try:
        kept = error.__traceback__
        try:
            if first is not None:
                error.__traceback__ = first
            _cut_chain(error)
            return "".join(traceback.TracebackException.from_exception(error, limit=-_MAX_FRAMES, compact=True).format())
        finally:
            error.__traceback__ = kept
    except BaseException as problem:
        frames = "".join(traceback.format_tb(first, limit=-_MAX_FRAMES))
        note = f"(no full traceback: formatting it raised {type(problem).__name__})"
        return f"Traceback (most recent call last):\n{frames}{class_path(type(error))}: {message_of(error)}\n{note}\n"


def _cut_chain(error: BaseException) -> None:
    """Refuse chains of causes too long to be printed; loops are no trouble to `traceback`."""
    seen: set[int] = set()
    link: BaseException | None = error
    while link is not None and id(link) not in seen:
        seen.add(id(link))
        if len(seen) > _MAX_CHAIN:
            raise OverflowError("a chain of causes that is too long")
        link = link.__cause__ or (None if link.__suppress_context__ else link.__context__)


def _without_own_frames(first: TracebackType | None) -> TracebackType | None:
    """Skip the executor's frames at the top, unless there are no others."""
    link = first
    while link is not None and link.tb_frame.f_code.co_filename.startswith(_OWN):
        link = link.tb_next
    return link or first


def _fingerprint(name: str, first: TracebackType | None) -> str:
    """Return 16 hex digits that are equal for the same class raised by way of the same function of the site's code.

    File and function, not the line: a fingerprint should outlive an edit further up in the file.
    """
    place = ""
    link = first
    while link is not None:
        code = link.tb_frame.f_code
        if not place or not code.co_filename.startswith((*_LIBRARIES, _PACKAGE, "<frozen")):
            place = f"{link.tb_frame.f_globals.get('__name__', '')}:{code.co_qualname}"
        link = link.tb_next
    return hashlib.sha256(f"{name}|{place}".encode(errors="replace")).hexdigest()[:16]
