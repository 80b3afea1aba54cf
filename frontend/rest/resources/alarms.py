"""Routes of alarms on queues and topics, for callers that manage the queue or topic.

An alarm on a topic is stored as one on the topic's hidden queue.
"""

from __future__ import annotations

import re
from typing import Annotated

from fastapi import APIRouter, Path, Query, Response

from auth.principal import Scope
from frontend.alarms.alarms import AlarmDefinition, Alarms
from frontend.alarms.webhooks import WebhookFailed
from frontend.request.access import check_name, in_prefixes
from frontend.request.context import Context
from frontend.rest.caller import CurrentCaller, ManagingRoute, RestCaller, rest_router
from frontend.rest.models import AlarmGiven, AlarmList, AlarmMade, AlarmShown, AlarmTested
from frontend.rest.problems import Problem, invalid, not_found
from frontend.topic_metrics import metrics_of
from metadata_service.alarms import WatchedAlarm
from metadata_service.topics import hidden_queue_name, is_hidden, topic_name_of

ALARMS_MAX = 500
"""Maximum number of alarms of an account."""
_NAME = re.compile(r"[A-Za-z0-9_-]{1,80}\Z")

Account = Annotated[str | None, Query(description="account of the alarms; operators may name any")]
Name = Annotated[str, Path(description="name of the alarm: 1 to 80 letters, digits, - and _")]


def create_router(context: Context) -> APIRouter:
    """Create the routes of alarms."""
    router = rest_router("alarms", ManagingRoute)
    services = context.services

    def alarms() -> Alarms:
        if services.alarms is None:
            raise Problem(409, "AlarmsOff", 'This service keeps no alarms: its operator has set alarms = "off".')
        return services.alarms

    async def find(caller: RestCaller, owner: str, name: str, scope: Scope = "manage") -> WatchedAlarm:
        """Find the alarm if the caller's key may be used for its queue."""
        caller.target = f"alarm {name[:80]} of {owner}"
        found = await alarms().store.get_alarm(owner, name)
        if found is None:
            raise not_found(f"alarm {name[:80]!r}")
        require_watched(caller, scope, owner, found.alarm.queue)
        caller.target = f"alarm {name} of {owner}"
        return found

    @router.put("/alarms/{name}", name="alarm.create", status_code=201)
    async def create(caller: CurrentCaller, name: Name, given: AlarmGiven, account: Account = None) -> AlarmMade:
        """Create an alarm, replacing one of the same name.  The answer contains the secret that signs the
        webhook's calls.

        The alarm goes off when the metric has been beyond the threshold for the given number of minutes.  Of a
        counted metric its rate per minute is compared.
        """
        owner = caller.account(account)
        kept = alarms()
        queue = _watched_by(given)
        require_watched(caller, "manage", owner, queue)
        caller.target = f"alarm {name[:80]} of {owner}"
        if not _NAME.match(name):
            raise invalid("The name of an alarm is 1 to 80 letters, digits, - and _.")
        known_metrics = metrics_of(queue)
        if given.metric not in known_metrics:
            raise invalid(f"There is no metric {given.metric[:100]!r}; there are {', '.join(known_metrics)}.")
        if given.topic is None:
            await context.queues.find(owner, queue)
        elif await context.queues.of_topic(owner, given.topic) is None:
            raise not_found(f"topic {given.topic[:256]!r}")
        known = await kept.store.list_alarms(owner)
        before = next((one for one in known if one.alarm.name == name), None)
        if before is not None:
            require_watched(caller, "manage", owner, before.alarm.queue)
            caller.target = f"alarm {name} of {owner}"
        elif len(known) >= ALARMS_MAX:
            raise Problem(409, "TooManyAlarms", f"The account {owner} has {ALARMS_MAX} alarms; delete some.")
        asked = AlarmDefinition(queue, given.metric, given.comparison, given.threshold, given.minutes, given.webhook)
        try:
            alarm, secret = await kept.create(owner, name, asked)
        except ValueError as error:
            text = str(error)
            raise invalid(f"{text[:1].upper()}{text[1:]}.") from None
        return AlarmMade(**_shown(WatchedAlarm(alarm)).model_dump(), secret=secret)

    @router.get("/alarms", name="alarm.list")
    async def list_alarms(
        caller: CurrentCaller,
        account: Account = None,
        queue: Annotated[str | None, Query(description="only alarms on this queue")] = None,
        topic: Annotated[str | None, Query(description="only alarms on this topic")] = None,
    ) -> AlarmList:
        """List the alarms of an account, by name, on queues and topics that the key may be used for."""
        owner = caller.account(account)
        caller.require_scope("monitor")
        found = await alarms().store.list_alarms(owner)
        if queue is not None:
            found = [one for one in found if one.alarm.queue == queue]
        if topic is not None:
            found = [one for one in found if one.alarm.queue == hidden_queue_name(topic)]
        allowed = set(in_prefixes(caller.principal, {_name(one) for one in found}))
        return AlarmList(alarms=[_shown(one) for one in found if _name(one) in allowed])

    @router.get("/alarms/{name}", name="alarm.show")
    async def show(caller: CurrentCaller, name: Name, account: Account = None) -> AlarmShown:
        """Show an alarm, its state, and the delivery of its notifications."""
        return _shown(await find(caller, caller.account(account), name, "monitor"))

    @router.delete("/alarms/{name}", name="alarm.delete", status_code=204)
    async def delete(caller: CurrentCaller, name: Name, account: Account = None) -> Response:
        """Delete an alarm.  Notifications that were not delivered yet are dropped."""
        owner = caller.account(account)
        found = await find(caller, owner, name)
        await alarms().store.delete_alarm(owner, found.alarm.name)
        return Response(status_code=204)

    @router.post("/alarms/{name}/test", name="alarm.test")
    async def test(caller: CurrentCaller, name: Name, account: Account = None) -> AlarmTested:
        """Call the webhook once, as if the alarm went off now; its state does not change."""
        found = await find(caller, caller.account(account), name)
        try:
            await alarms().test(found.alarm)
        except WebhookFailed as error:
            text = str(error)
            return AlarmTested(delivered=False, detail=f"{text[:1].upper()}{text[1:]}.")
        return AlarmTested(delivered=True, detail=f"The webhook at {found.alarm.host} has received it.")

    return router


def _watched_by(given: AlarmGiven) -> str:
    """Name of the queue that is to be watched, also of a topic's.  Raises :class:`Problem`."""
    if given.queue is not None and given.topic is None:
        return given.queue
    if given.topic is not None and given.queue is None:
        return hidden_queue_name(given.topic)
    raise invalid("An alarm is on a queue or on a topic: give one of the two.")


def require_watched(caller: RestCaller, scope: Scope, account: str, queue: str) -> None:
    """Require that the caller's key may be used for what an alarm watches."""
    topic = topic_name_of(queue)
    if topic is None:
        caller.require_queue(scope, account, queue)
        return
    caller.require_scope(scope)
    check_name(caller.principal, topic, "topics")


def _name(watched: WatchedAlarm) -> str:
    """Name of the queue or topic."""
    return topic_name_of(watched.alarm.queue) or watched.alarm.queue


def _shown(watched: WatchedAlarm) -> AlarmShown:
    alarm, status = watched.alarm, watched.status
    return AlarmShown(
        name=alarm.name,
        account=alarm.account,
        queue=None if is_hidden(alarm.queue) else alarm.queue,
        topic=topic_name_of(alarm.queue),
        metric=alarm.metric,
        comparison=alarm.comparison,
        threshold=alarm.threshold,
        minutes=alarm.minutes,
        webhook_host=alarm.host,
        created=alarm.created_s,
        state=status.state,
        since=status.since_s or None,
        value=status.value,
        breaching_since=status.breaching_since_s or None,
        waiting=len(status.waiting),
        delivered_at=status.delivered_s or None,
        trouble=status.trouble or None,
        lost=status.lost,
    )
