"""Creation of alarms, with a signing secret that is shown once, and delivery of notifications to their webhooks."""

from __future__ import annotations

import secrets
from base64 import urlsafe_b64encode
from collections.abc import Callable
from typing import Final, NamedTuple

import msgspec

from auth.encryption.data_keys import DataKeyMissing, DecryptionFailed
from auth.encryption.keyring import Keyring
from frontend.alarms.rules import reason
from frontend.alarms.webhooks import WebhookFailed, Webhooks, host_of
from metadata_service.alarms import Alarm, Comparison, Notification
from metadata_service.store import AlarmStore
from metadata_service.topics import topic_name_of

SECRET_PREFIX: Final = "hfwh_"


class _Webhook(msgspec.Struct):
    """The encrypted part of an alarm."""

    url: str
    secret: str


class AlarmDefinition(NamedTuple):
    """Requested definition of an alarm."""

    queue: str
    """Name of the queue; of a topic that of its hidden queue."""
    metric: str
    comparison: Comparison
    threshold: float
    minutes: int
    webhook: str


class Alarms:
    """The alarms in a store."""

    def __init__(self, store: AlarmStore, keyring: Keyring, webhooks: Webhooks, clock: Callable[[], float]) -> None:
        """``clock``: seconds since the epoch.  Closing this object closes the webhooks."""
        self.store = store
        self._keyring = keyring
        self._webhooks = webhooks
        self._clock = clock

    async def close(self) -> None:
        await self._webhooks.close()

    async def create(self, account: str, name: str, asked: AlarmDefinition) -> tuple[Alarm, str]:
        """Create an alarm, replacing one of the same name; returns it with the secret that signs its calls.

        Raises ``ValueError`` (for the URL, or if there is no such tenant), and the errors of the store and the
        keyring.
        """
        host = host_of(asked.webhook)
        secret = SECRET_PREFIX + urlsafe_b64encode(secrets.token_bytes(24)).decode()
        alarm_id = secrets.token_hex(8)
        keys = await self._keyring.ready(account)
        encrypted = keys.encrypt(msgspec.json.encode(_Webhook(asked.webhook, secret)), _what(alarm_id))
        alarm = Alarm(
            account,
            name,
            alarm_id,
            asked.queue,
            asked.metric,
            asked.comparison,
            asked.threshold,
            asked.minutes,
            host,
            encrypted,
            int(self._clock()),
        )
        await self.store.put_alarm(alarm)
        return alarm, secret

    async def notify(self, alarm: Alarm, notification: Notification, *, test: bool = False) -> None:
        """Call the webhook.  Raises :class:`WebhookFailed`, and the keyring's errors for missing master keys."""
        try:
            opened = await self._keyring.decrypt(alarm.account, alarm.webhook, _what(alarm.alarm_id))
        except (DecryptionFailed, DataKeyMissing) as error:
            raise WebhookFailed(f"the webhook cannot be decrypted, create the alarm again: {error}") from None
        webhook = msgspec.json.decode(opened, type=_Webhook)
        body = webhook_body(alarm, notification, test=test)
        await self._webhooks.post(webhook.url, webhook.secret.encode(), notification.id, body, int(self._clock()))

    async def test(self, alarm: Alarm) -> None:
        """Call the webhook as if the alarm went off now.  Raises as :meth:`notify` does."""
        text = reason(alarm, "ALARM", alarm.threshold)
        await self.notify(
            alarm,
            Notification(secrets.token_hex(16), int(self._clock()), "OK", "ALARM", alarm.threshold, f"A test: {text}"),
            test=True,
        )


def webhook_body(alarm: Alarm, notification: Notification, *, test: bool) -> bytes:
    """Body of a webhook call: JSON."""
    topic = topic_name_of(alarm.queue)
    return msgspec.json.encode(
        {
            "id": notification.id,
            "type": "alarm.test" if test else "alarm.state_changed",
            "time": notification.at_s,
            "state": notification.state,
            "previous_state": notification.before,
            "value": notification.value,
            "reason": notification.reason,
            "alarm": {
                "account": alarm.account,
                "name": alarm.name,
                **({"queue": alarm.queue} if topic is None else {"topic": topic}),
                "metric": alarm.metric,
                "comparison": alarm.comparison,
                "threshold": alarm.threshold,
                "minutes": alarm.minutes,
            },
        }
    )


def _what(alarm_id: str) -> bytes:
    """Purpose to which an encrypted webhook is bound."""
    return b"webhook of alarm " + alarm_id.encode()
