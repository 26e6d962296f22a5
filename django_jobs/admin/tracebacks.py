"""A traceback in blocks: the site's own frames stand out, runs of library frames fold away."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

#: A frame's first line, in a plain traceback or in one of an exception group (bars in front).
_FRAME: Final = re.compile(r'^(?P<lead>[ |+-]*)File "(?P<path>[^"\n]*)", line \d+')
_LEAD: Final = re.compile(r"^[ |+-]*")
#: Where code lives that the site did not write, on whichever host the job ran.
_LIBRARY: Final = re.compile(
    r"[/\\](?:site-packages|dist-packages)[/\\]|[/\\]lib[/\\]python\d|^<|[/\\]Python\d+[/\\]Lib[/\\]", re.IGNORECASE
)
_OWN: Final = str(Path(__file__).resolve().parent.parent)


@dataclass(frozen=True, slots=True)
class Block:
    """Consecutive lines of one kind: "text", "site" or "library". `frames` counts the frames among them."""

    kind: str
    text: str
    frames: int = 0


def is_library(path: str) -> bool:
    """Whether a file is installed code (or this package's), as against the site's own."""
    return bool(_LIBRARY.search(path)) or path.startswith(_OWN)


def blocks(traceback: str) -> list[Block]:
    """Split a traceback. Joined with newlines, the blocks' texts are the traceback again."""
    merged: list[Block] = []
    for block in _pieces(traceback):
        last = merged[-1] if merged else None
        if last and last.kind == block.kind:
            merged[-1] = Block(block.kind, f"{last.text}\n{block.text}", last.frames + block.frames)
        else:
            merged.append(block)
    return merged


def _pieces(traceback: str) -> Iterator[Block]:
    lines = traceback.split("\n")
    index = 0
    while index < len(lines):
        match = _FRAME.match(lines[index])
        if not match:
            yield Block("text", lines[index])
            index += 1
            continue
        end = index + 1
        # A frame goes on while lines are indented deeper than its "File".
        while end < len(lines) and _depth(lines[end]) > len(match["lead"]):
            end += 1
        yield Block("library" if is_library(match["path"]) else "site", "\n".join(lines[index:end]), 1)
        index = end


def _depth(line: str) -> int:
    match = _LEAD.match(line)
    return match.end() if match and match.end() < len(line) else 0
