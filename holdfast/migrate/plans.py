"""The plan of an import, shown to users and programs before it is carried out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from holdfast.migrate.definition import foreign_references
from holdfast.migrate.target import Existing, Planned, TargetService

_HALF_MADE = (
    ". Only attributes that are set last are missing, as after an interrupted import: if it was one, complete "
    "it with --existing update"
)


def describe_plan(
    target: TargetService, planned: Sequence[Planned], notes: Sequence[Sequence[str]], existing: Existing
) -> tuple[dict[str, Any], str]:
    """The plan as a document, and the reason why it cannot be carried out; empty: it can."""
    queues: dict[str, Any] = {}
    wrong: list[str] = []
    coming = {one.wanted.name for one in planned}
    for one, more in zip(planned, notes, strict=True):
        texts = list(more)
        dead = one.wanted.dead_letter_queue
        if dead is not None and dead.name not in coming and target.find(dead.name) is None:
            wrong.append(
                f"queue {one.wanted.name} has the dead-letter queue {dead.name}, which neither exists nor is "
                "imported with it: name its file as well, or create it first"
            )
        texts += [f"its policy names {reference}, which is not changed" for reference in foreign_references(one.wanted)]
        action = "create" if one.there is None else "use"
        if one.differences:
            action = "update" if existing == "update" else "use"
            if existing == "stop":
                wrong.append(
                    f"queue {one.wanted.name} exists and differs: {'; '.join(one.differences)}. Choose with "
                    "--existing: keep (it is not changed) or update (it is changed)"
                    + (_HALF_MADE if one.half_made else "")
                )
        queues[one.wanted.name] = {"action": action, "differences": one.differences, "notes": texts}
    return {"service": target.endpoint, "queues": queues}, "\n  ".join(wrong)


def lines_of(document: dict[str, Any]) -> str:
    """The plan as text for users."""
    from holdfast.commandline.text_tables import shown, table

    counted = any("messages" in queue for queue in document["queues"].values())
    headings = ("QUEUE", "ACTION", *(("MESSAGES",) if counted else ()))
    rows = [
        (name, queue["action"], *((queue.get("messages"),) if counted else ()))
        for name, queue in document["queues"].items()
    ]
    text = table(headings, rows, nothing="There is nothing to do.")
    notes = [
        shown(f"{name}: {note}")
        for name, queue in document["queues"].items()
        for note in (*queue["notes"], *(f"there, {difference}" for difference in queue["differences"]))
    ]
    return "\n".join([text, *(["", *notes] if notes else [])])
