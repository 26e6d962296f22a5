"""Write the table of moves and its picture from `django_jobs.statuses`.

`python -m tests.docs.moves` puts both into docs/lifecycle.md.
"""

from __future__ import annotations

import re
from itertools import groupby

from django_jobs.statuses import FINAL, MOVES, Move, Status
from tests.docs.pages import DOCS

PAGE = DOCS / "lifecycle.md"

#: How the page calls each move.
WORDS = {
    Move.CLAIM: "a worker claims it",
    Move.STAGE: "the clock, or a person",
    Move.RELEASE: "the last job that it waits for",
    Move.HOLD_BACK: "a job that it waits for is requeued",
    Move.RECORD: "the outcome of the attempt",
    Move.CANCEL: "a person or a program cancels it; its `start_by`",
    Move.REQUEUE: "a person or a program requeues it",
    Move.DONE: "a person marks it done by hand",
    Move.GIVE_UP: "maintenance: no worker knows its task",
}
#: Where a move means something else from one status.
SPECIAL = {
    (Move.STAGE, Status.SCHEDULED): "its time has come; a person runs it now",
    (Move.STAGE, Status.READY): "a person gives it a later start",
    (Move.CANCEL, Status.FAILED): "a person acknowledges the failure",
    (Move.CANCEL, Status.TIMED_OUT): "a person acknowledges it",
}


def moves() -> list[tuple[Status, Status, Move]]:
    """Return every legal move in the order of the statuses."""
    return [
        (source, target, move)
        for source in Status
        for move in Move
        for target in Status
        if target in MOVES[move].get(source, frozenset())
    ]


def table() -> str:
    """Return the moves as a table: one line for each status and each way out of it."""
    lines = ["| from | to | by |", "|---|---|---|"]
    for (source, move), group in groupby(moves(), key=lambda one: (one[0], one[2])):
        targets = ", ".join(f"`{target.value}`" for _, target, _ in group)
        lines.append(f"| `{source.value}` | {targets} | {SPECIAL.get((move, source), WORDS[move])} |")
    return "\n".join(lines) + "\n"


def picture() -> str:
    """Return the moves as a state diagram of Mermaid's, one arrow for each pair of statuses."""
    arrows: dict[tuple[Status, Status], list[str]] = {}
    for source, target, move in moves():
        arrows.setdefault((source, target), []).append(move.value.replace("_", " "))
    lines = ["```mermaid", "stateDiagram-v2"]
    lines += [f"    [*] --> {status.value}: enqueue" for status in (Status.WAITING, Status.SCHEDULED, Status.READY)]
    lines += [f"    {source.value} --> {target.value}: {', '.join(names)}" for (source, target), names in arrows.items()]
    lines += [f"    {status.value} --> [*]: prune" for status in Status if status in FINAL]
    return "\n".join([*lines, "```"]) + "\n"


def filled(text: str) -> str:
    """Return the page with both written anew."""
    for name, content in (("moves", table()), ("picture", picture())):
        text, count = re.subn(
            rf"(<!-- generated: {name} -->\n).*?(<!-- end -->)",
            lambda match, new=content: match[1] + new + match[2],
            text,
            flags=re.DOTALL,
        )
        assert count == 1, name
    return text


if __name__ == "__main__":
    PAGE.write_text(filled(PAGE.read_text()))
