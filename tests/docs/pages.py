"""Read the pages of the docs: their blocks of code, and their tables."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"

_MARK = re.compile(r"<!-- (?P<kind>tested|quickstart|settings|generated)(?:: (?P<what>.+?))? -->")
_SAYS = re.compile(r"^(?P<indent> *)(?P<code>\S.*?)  # (?:-> (?P<value>.+)|raises (?P<error>\w+))$")


@dataclass(frozen=True)
class Block:
    """A block of code. `kind` and `what` are from the mark above it, if there is one: `<!-- kind: what -->`."""

    page: Path
    line: int
    language: str
    text: str
    kind: str = ""
    what: str = ""


def blocks(page: Path) -> Iterator[Block]:
    """Yield the fenced blocks of a page, each with the mark in the line before its fence."""
    lines = page.read_text().splitlines()
    number = 0
    while number < len(lines):
        if not lines[number].startswith("```"):
            number += 1
            continue
        end = next(index for index in range(number + 1, len(lines)) if lines[index] == "```")
        mark = _MARK.fullmatch(lines[number - 1]) if number else None
        yield Block(
            page,
            number + 2,
            lines[number][3:].strip(),
            "\n".join(lines[number + 1 : end]) + "\n",
            mark["kind"] if mark else "",
            (mark["what"] or "") if mark else "",
        )
        number = end + 1


def checked(block: Block) -> str:
    """Return the code of a block with what its comments say as assertions.

    `expression  # -> value` becomes a comparison, `expression  # raises Error` an expected exception. Lines keep their numbers.
    """
    done = []
    for line in block.text.splitlines():
        match = _SAYS.match(line)
        if match is None:
            done.append(line)
        elif match["error"]:
            done.append(f"{match['indent']}_raises({match['error']!r}, lambda: {match['code']})")
        else:
            done.append(f"{match['indent']}_same(({match['code']}), ({match['value']}))")
    return "\n".join(done) + "\n"


def rows(text: str, heading: str) -> list[list[str]]:
    """Return the cells of the first table below `## heading` (of any level), without its head."""
    section = re.search(rf"^#+ {re.escape(heading)}\n(.*?)(?=^#+ |\Z)", text, re.MULTILINE | re.DOTALL)
    assert section, f"there is no section {heading!r}"
    found = []
    for line in section[1].splitlines():
        if line.startswith("|"):
            found.append([cell.strip() for cell in line.strip("|").split("|")])
        elif found:
            break
    assert len(found) > 2, f"there is no table below {heading!r}"
    return found[2:]
