"""Budgets of tenants, and alerts to receivers when one is exceeded.

Budgets are data, a YAML file::

    budgets:
      - name: requests of the month
        account: "000000000001"   # left out: every account has this budget
        measure: requests         # or messages, bytes_out, or cost where prices are given
        limit: 50000000
        at: [80, 100]             # percent of the limit; left out: 100

An *alert* is one crossing of a percentage of a budget's limit by an account in a month (UTC).  Its id is derived from
exactly these.  Alerts are stored in the lake (``live/alerts.json``) before they are sent, so one crossing is one alert,
also after a restart.  A delivery is recorded after it succeeded, so an alert may be sent twice if the process was
killed in between; both have the same id.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Final, Literal, Protocol, get_args

import httpx
import msgspec

from billing.lake.lake import Lake, LakeUnavailable
from billing.lake.months import Month
from billing.pricing.strict_yaml import YamlNode, parse

logger = logging.getLogger("holdfast.usage")

ALERTS: Final = "live/alerts.json"
NOTIFY_SECONDS: Final = 10.0
"""Timeout of a webhook; it is called again later."""

Measured = Literal["requests", "messages", "bytes_out", "cost"]
"""Measured quantity.

``requests``: billed requests, which are chunks of 64 KiB and at least one a call; ``cost``: in the plan's currency.
"""
MEASURED: Final[tuple[Measured, ...]] = get_args(Measured)


class Budget(msgspec.Struct, frozen=True):
    """A monthly limit of an account's usage; exceeding it only sends alerts."""

    name: str
    account: str | None
    """Account; None: each account has this budget."""
    measure: Measured
    limit: Decimal
    at: tuple[int, ...]
    """Percentages of the limit at which an alert is sent."""


class Alert(msgspec.Struct, frozen=True):
    """A crossing of a budget's percentage.  Fields are only ever added, with a default."""

    id: str
    month: str
    account: str
    budget: str
    measure: Measured
    limit: Decimal
    percent: int
    used: Decimal
    """Usage at the time of the alert."""
    at: datetime
    waiting: tuple[str, ...] = ()
    """Receivers that do not have the alert yet."""


class ReceiverUnreachable(Exception):
    """A receiver cannot be reached now; the text names it and the reason."""


class Receiver(Protocol):
    """Destination of alerts."""

    name: str

    def notify(self, alert: Alert) -> None:
        """Deliver an alert.  Raises :class:`ReceiverUnreachable`: the caller tries again later."""


def load_budgets(path: Path) -> list[Budget]:
    """Read the budgets of a file.  Raises :class:`~billing.pricing.strict_yaml.YamlError` and :class:`OSError`."""
    return budgets_of(path.read_text("utf-8"), str(path))


def budgets_of(text: str, source: str) -> list[Budget]:
    """Parse budgets.  Raises :class:`~billing.pricing.strict_yaml.YamlError`."""
    nodes = parse(text, source).fields("budgets")["budgets"].items()
    budgets = [_budget(node) for node in nodes]
    seen: set[tuple[str, str | None]] = set()
    for budget, node in zip(budgets, nodes, strict=True):
        if (budget.name, budget.account) in seen:
            node.fail(f"there is another budget {budget.name!r} of the same account: give it another name")
        seen.add((budget.name, budget.account))
    return budgets


def _budget(node: YamlNode) -> Budget:
    fields = node.fields("name", "measure", "limit", account=None, at=[100])
    account = None if fields["account"].value is None else fields["account"].text()
    if account is not None and not re.fullmatch(r"\d{12}", account, re.ASCII):
        fields["account"].fail(f"{account!r} is not an account: 12 digits, in quotes")
    measure = fields["measure"].text()
    if measure not in MEASURED:
        fields["measure"].fail(f"there is no measure {measure!r}; there are {', '.join(MEASURED)}")
    limit = fields["limit"].decimal(6)
    if not limit:
        fields["limit"].fail("is 0; it has to be more")
    at = [one.whole(1, 1000) for one in fields["at"].items()]
    if not at:
        fields["at"].fail("is empty; leave it out for 100 percent")
    return Budget(fields["name"].text(), account, measure, limit, tuple(sorted(set(at))))


def passed(
    budgets: Iterable[Budget],
    month: Month,
    used: Mapping[str, Mapping[Measured, Decimal]],
    at: datetime,
) -> list[Alert]:
    """Return all crossings of a month, computed from the usage of each account."""
    alerts = []
    for budget in budgets:
        for account in sorted(used) if budget.account is None else [budget.account]:
            amount = used.get(account, {}).get(budget.measure)
            if amount is None:
                continue
            alerts += [
                Alert(
                    _id(month, account, budget, percent),
                    str(month),
                    account,
                    budget.name,
                    budget.measure,
                    budget.limit,
                    percent,
                    amount,
                    at,
                )
                for percent in budget.at
                if amount * 100 >= budget.limit * percent
            ]
    return alerts


def _id(month: Month, account: str, budget: Budget, percent: int) -> str:
    what = "\0".join((str(month), account, budget.name, budget.measure, f"{budget.limit.normalize():f}", str(percent)))
    return hashlib.sha256(what.encode()).hexdigest()[:32]


def alerts(lake: Lake) -> list[Alert]:
    """Return the alerts of this month and the last, oldest first.

    Raises :class:`~billing.lake.lake.LakeUnavailable`.
    """
    data = lake.read_bytes(ALERTS)
    try:
        return [] if data is None else msgspec.json.decode(data, type=list[Alert])
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise LakeUnavailable(
            f"{ALERTS} in the lake cannot be read: {error}; if you remove it, this month's alerts are sent again"
        ) from error


def watch(lake: Lake, found: Iterable[Alert], month: Month, receivers: Sequence[Receiver]) -> list[Alert]:
    """Store the crossings that are new, and deliver all alerts that are due; returns the new ones.

    Only one process may do so at a time.  A delivery that fails is tried again at the next call.  Raises
    :class:`~billing.lake.lake.LakeUnavailable`.
    """
    names = tuple(receiver.name for receiver in receivers)
    before = alerts(lake)
    known = {alert.id for alert in before}
    new = [msgspec.structs.replace(alert, waiting=names) for alert in found if alert.id not in known]
    kept = [alert for alert in before if alert.month >= str(month.previous)] + new
    if new or len(kept) < len(before):
        _keep(lake, kept)
    for receiver in receivers:
        for number, alert in enumerate(kept):
            if receiver.name not in alert.waiting:
                continue
            try:
                receiver.notify(alert)
            except ReceiverUnreachable as error:
                logger.error("an alert could not be sent yet: %s", error)
                break
            kept[number] = msgspec.structs.replace(
                alert, waiting=tuple(name for name in alert.waiting if name != receiver.name)
            )
            _keep(lake, kept)
    return new


def _keep(lake: Lake, kept: list[Alert]) -> None:
    lake.write_bytes(ALERTS, msgspec.json.format(msgspec.json.encode(kept), indent=1))


def alert_json(alert: Alert) -> bytes:
    """Encode an alert as receivers get it: JSON."""
    fields: dict[str, object] = msgspec.to_builtins(alert)
    del fields["waiting"]
    return msgspec.json.encode(fields)


class Webhook:
    """Receiver that gets each alert by POST, as JSON with its id as ``Idempotency-Key``; 2xx confirms it."""

    name = "webhook"

    def __init__(self, url: str) -> None:
        """Raises :class:`ValueError` for an invalid URL."""
        try:
            self._url = httpx.URL(url)
        except httpx.InvalidURL as error:
            raise ValueError(f"the webhook is not a URL: {error}") from None
        if self._url.scheme not in ("http", "https") or not self._url.host:
            raise ValueError("the webhook is not a URL: it has to begin with https:// or http:// and a host")

    def notify(self, alert: Alert) -> None:
        headers = {"Content-Type": "application/json", "Idempotency-Key": alert.id}
        try:
            answer = httpx.post(self._url, content=alert_json(alert), headers=headers, timeout=NOTIFY_SECONDS)
        except httpx.HTTPError as error:  # the URL may contain a secret, and the error's text the URL
            raise ReceiverUnreachable(
                f"the webhook at {self._url.host} cannot be reached: {type(error).__name__}"
            ) from None
        if not answer.is_success:
            raise ReceiverUnreachable(f"the webhook at {self._url.host} has answered {answer.status_code}")


class Lines:
    """File that gets each alert as one line of JSON, each once."""

    name = "file"

    def __init__(self, path: Path) -> None:
        self._path = path

    def notify(self, alert: Alert) -> None:
        try:
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with open(self._path, "a+b") as file:
                file.seek(0)
                before = file.read()
                if alert.id.encode() in before:  # written by a process that was killed before it recorded the delivery
                    return
                file.write((b"\n" if before and not before.endswith(b"\n") else b"") + alert_json(alert) + b"\n")
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise ReceiverUnreachable(f"{self._path} cannot be written: {error.strerror}") from None
