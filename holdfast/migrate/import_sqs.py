"""``holdfast import sqs``: queues of another SQS service, optionally with their messages.

The plan is shown first: queues to create, existing ones, and properties that cannot be carried over.  It is
carried out after confirmation.  Each part can be repeated: existing queues are found, and draining continues.
"""

from __future__ import annotations

import dataclasses
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from holdfast.commandline.base import Parsed, confirm, print_result
from holdfast.commandline.client import NOT_FOUND, USAGE, CommandFailed
from holdfast.commandline.progress import Progress
from holdfast.migrate.definition import Definition, portable
from holdfast.migrate.drain import Drain, Drainer, reasons
from holdfast.migrate.plans import describe_plan, lines_of
from holdfast.migrate.resume_log import Header, ResumeLog
from holdfast.migrate.source import SourceQueue, SourceService
from holdfast.migrate.target import Planned, TargetService
from telemetry.texts import TEXT_LENGTH_MAX, shown

if TYPE_CHECKING:
    from holdfast.commandline.client import RestClient

_WINDOW_SECONDS = {False: 60, True: 300}
"""Time for which a repeated send is recognized, by queue type (FIFO or not)."""


def import_sqs(client: RestClient, parsed: Parsed) -> None:
    """Run the command.  Raises :class:`CommandFailed`, also if messages remain at the source."""
    target, progress = TargetService(client), Progress()
    source = SourceService(
        parsed.endpoint_url,
        parsed.region,
        parsed.profile,
        connections=parsed.workers,
        visibility_seconds=parsed.visibility,
    )
    if _host(source.endpoint) == _host(target.endpoint):
        raise CommandFailed(f"{source.endpoint} is the service itself: name the source with --endpoint-url", USAGE)
    progress.step(f"Reading the queues of {source.endpoint}")
    queues = source.queues(parsed.queue_prefix)
    if not queues:
        begin = f" whose name begins with {parsed.queue_prefix}" if parsed.queue_prefix else ""
        raise CommandFailed(f"there is no queue{begin} at {source.endpoint}", NOT_FOUND)
    planned, notes = _planned(queues, target)
    document, refusal = describe_plan(target, planned, notes, parsed.existing)
    document["source"] = source.endpoint
    for queue in queues:
        document["queues"][queue.definition.name]["messages"] = sum(queue.counted)
    if parsed.dry_run or refusal:
        print_result(parsed, document, lambda: lines_of(document))
        if refusal:
            raise CommandFailed(refusal)
        return
    if not parsed.json:
        print(lines_of(document), flush=True)
    confirm(parsed, _question(queues, target, parsed))
    with ExitStack() as stack:
        both = zip(queues, planned, strict=True) if parsed.drain else ()
        drains = [_drain(stack, one, plan, source, target, parsed, progress) for one, plan in both]
        progress.step("Creating the queues")
        target.make(planned, parsed.existing)
        if not parsed.drain:
            print_result(parsed, document, lambda: f"{len(queues)} queues are at {target.endpoint}.")
            return
        _run(source, target, drains, parsed, progress)
    _print_end(drains, document, parsed)


# --- the plan ----------------------------------------------------------------------------------------------


def _planned(queues: Sequence[SourceQueue], target: TargetService) -> tuple[list[Planned], list[list[str]]]:
    coming = {one.definition.name for one in queues}
    planned, notes = [], []
    for one in queues:
        found = portable(one.definition)
        wanted, remarks = found.definition, list(found.left)
        dead = wanted.dead_letter_queue
        if dead is not None and dead.name not in coming and target.find(dead.name) is None:
            wanted = _without(wanted, "RedrivePolicy")
            remarks.append(f"its dead-letter queue {dead.name} neither exists nor is imported: the queue gets none")
        remarks += [f"the attribute {name} is not known here" for name in one.unknown]
        if one.counted.in_flight:
            remarks.append(
                f"{one.counted.in_flight} messages are in flight at the source, and cannot be moved "
                "until they are visible"
            )
        if one.counted.delayed:
            remarks.append(
                f"{one.counted.delayed} messages are delayed at the source, and cannot be moved until they are visible"
            )
        if wanted.fifo and int(wanted.attributes.get("DelaySeconds", 0)):
            remarks.append(
                "its messages wait for the queue's delay again: messages of a FIFO queue have no delay of their own"
            )
        planned.append(target.plan(wanted))
        notes.append(remarks)
    return planned, notes


def _without(definition: Definition, name: str) -> Definition:
    return dataclasses.replace(
        definition, attributes={one: value for one, value in definition.attributes.items() if one != name}
    )


def _question(queues: Sequence[SourceQueue], target: TargetService, parsed: Parsed) -> str:
    what = f"Import {len(queues)} queues to {target.endpoint}"
    if not parsed.drain:
        return f"{what}?  Messages stay where they are."
    count = sum(sum(one.counted) for one in queues)
    return f"{what}, and move their messages, about {count}?  They are deleted at the source once they are stored."


def _host(endpoint: str) -> tuple[str | None, int | None]:
    parts = urlsplit(endpoint)
    return parts.hostname, parts.port or (443 if parts.scheme == "https" else 80)


# --- draining ----------------------------------------------------------------------------------------------


def _drain(
    stack: ExitStack,
    queue: SourceQueue,
    plan: Planned,
    source: SourceService,
    target: TargetService,
    parsed: Parsed,
    progress: Progress,
) -> Drain:
    """Prepare the draining of a queue.  Raises :class:`CommandFailed`."""
    folder: Path = parsed.progress
    name = queue.definition.name
    try:
        folder.mkdir(parents=True, exist_ok=True)
        header = Header(source.endpoint, str(queue.definition.arn), target.endpoint)
        ledger = stack.enter_context(ResumeLog(folder / f"{name}.jsonl", header))
    except OSError as error:
        raise CommandFailed(f"the folder {folder} cannot be used: {error.strerror}") from None
    late = [at for at in ledger.in_doubt() if time.time() - at > _WINDOW_SECONDS[queue.definition.fifo]]
    if late:
        progress.step(
            f"{len(late)} messages of {name} were being sent when the import was interrupted, longer ago than "
            "the service recognizes repeated sends: they may be stored twice"
        )
    return Drain(queue, plan.result(parsed.existing), ledger)


def _run(
    source: SourceService, target: TargetService, drains: Sequence[Drain], parsed: Parsed, progress: Progress
) -> None:
    progress.step(f"Moving messages of {len(drains)} queues")
    drainer = Drainer(source, target, drains, settle_seconds=parsed.settle, follow=parsed.follow)
    with _terminated_as_interrupted():
        try:
            drainer.run(parsed.workers, progress)
        except KeyboardInterrupt:
            if not parsed.follow:
                raise


@contextmanager
def _terminated_as_interrupted() -> Iterator[None]:
    """Treat SIGTERM like Ctrl-C during the draining."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _print_end(drains: Sequence[Drain], document: dict[str, Any], parsed: Parsed) -> None:
    """Report the result.  Raises :class:`CommandFailed` if messages remain."""
    for one in drains:
        document["queues"][one.name] |= {"moved": one.forwarded, "left": len(one.left)}
    moved = sum(one.forwarded for one in drains)
    print_result(parsed, document, lambda: f"{moved} messages of {len(drains)} queues were moved.")
    failures = [one.failure for one in drains if one.failure is not None]
    left = reasons(drains)
    if failures or left:
        remarks = [*map(str, failures), *(["these messages stay at the source:", *left] if left else [])]
        raise CommandFailed(
            "\n  ".join(shown(one, TEXT_LENGTH_MAX) for one in remarks), failures[0].code if failures else 1
        )
