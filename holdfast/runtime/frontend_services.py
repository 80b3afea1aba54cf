"""Parts of a frontend's services, made from the settings; common to the embedded service and to frontend processes."""

from __future__ import annotations

import logging
import os
import time
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from auth.audit import AuditFile, AuditLog
from auth.limits import parse_limits
from billing.metering.meter import Meter
from billing.metering.spool import waiting
from billing.reports.reader import Reader
from frontend.alarm_keeper import Keeper
from frontend.alarms.alarms import Alarms
from frontend.alarms.webhooks import Webhooks
from frontend.document_jobs import Documents
from frontend.push.endpoint import Endpoints
from frontend.push.pushers import Pushers, PushStore
from frontend.services import Services
from frontend.settings import FrontendSettings
from frontend.usage_stream import UsageStream
from holdfast.networks import parse_networks
from holdfast.runtime.errors import CannotStart
from holdfast.runtime.python import python
from holdfast.runtime.usage_upload import outbox_of, start_uploader
from holdfast.settings import Settings
from metadata_service.store import AlarmStore, DocumentStore
from ratelimit.address import MEMORY
from ratelimit.limiter import BaseLimiter, Limiter

if TYPE_CHECKING:
    from auth.tokens.oidc import Oidc

logger = logging.getLogger("holdfast.usage")


def open_audit(settings: Settings) -> AuditLog:
    """Open the audit log.  Raises :class:`CannotStart`."""
    try:
        return AuditLog(AuditFile(settings.audit_path))
    except OSError as error:
        raise CannotStart(f"the audit log {settings.audit_path} cannot be written: {error.strerror}") from error


def count_usage(services: Services, settings: Settings, store: DocumentStore, *, uploads: bool = True) -> None:
    """Start metering, if the settings enable it; ``uploads``: and upload the records to the lake.

    Raises :class:`CannotStart`.
    """
    if settings.usage == "off":
        if settings.usage_stream is not None:
            raise CannotStart('usage_stream needs usage records: set usage = "on", or remove usage_stream')
        if uploads:
            _log_what_waits(settings)
        return
    try:
        services.meter = Meter.start(settings.usage_folder, os.uname().nodename)
    except OSError as error:
        raise CannotStart(f"usage cannot be counted in {settings.usage_folder}: {error.strerror}") from error
    services.meter.run()
    services.lake = Reader(settings.lake, python())
    services.documents = Documents(store, services.lake, services.clock)
    if not uploads:
        return
    if settings.usage_stream is None:
        services.uploader = start_uploader(settings)
    else:
        account, outbox = settings.usage_stream_account or settings.account, outbox_of(settings)
        published = UsageStream(services, outbox, account, settings.usage_stream, settings.kafka_partitions)
        services.publisher = published
        services.uploader = start_uploader(settings, outbox, published.wake)


def _log_what_waits(settings: Settings) -> None:
    """Log usage that was recorded before metering was disabled, and is not uploaded."""
    found = waiting(settings.usage_folder)
    if found.files:
        logger.warning(
            '%d usage files in %s are not uploaded: set usage = "on", or upload them with '
            "`python -m billing.lake.upload %s LAKE`",
            found.files,
            settings.usage_folder,
            settings.usage_folder,
        )


def keep_alarms(services: Services, settings: Settings, store: AlarmStore) -> None:
    """Enable tenants' alarms, if the settings do, and stand for election as the process that evaluates them.

    To be called before anything is served; closed with the services.
    """
    if settings.alarms == "off" or services.keyring is None:
        return
    webhooks = Webhooks(parse_networks(settings.webhook_networks))
    services.alarms = Alarms(store, services.keyring, webhooks, services.clock)
    name = f"{os.uname().nodename}:{os.getpid()}"
    services.keeper = Keeper(services, services.alarms, name, seconds=settings.alarm_seconds)


def push_messages(services: Services, settings: Settings, store: PushStore, *, alone: bool) -> None:
    """Enable the push of queues' messages, if the settings do.  ``alone``: this process is the only frontend.

    To be called before anything is served; closed with the services.
    """
    if settings.push == "off":
        return
    endpoints = Endpoints(parse_networks(settings.webhook_networks))
    name = f"{os.uname().nodename}:{os.getpid()}"
    services.pusher = Pushers(services, store, endpoints, name, alone=alone)


_SAME_SETTINGS = {field.name for field in fields(FrontendSettings)}.intersection(Settings.__struct_fields__) - {
    "encryption",
    "default_limits",
    "push",
    "webhook_networks",
}
"""Settings of a frontend that are the same as the service's."""


def frontend_settings(settings: Settings, processes: int = 1) -> FrontendSettings:
    """Return the settings of one of ``processes`` frontends."""
    return FrontendSettings(
        **{name: getattr(settings, name) for name in _SAME_SETTINGS},
        encryption=settings.encryption == "on",
        push=settings.push == "on",
        webhook_networks=tuple(str(network) for network in parse_networks(settings.webhook_networks)),
        default_limits=parse_limits(settings.default_limits),
        processes=processes,
    )


def limiter_of(settings: Settings, processes: int = 1) -> BaseLimiter[Any]:
    """Make the limiter that checks calls against tenants' rates, for one of ``processes``; not started yet."""
    if settings.rate_limit_storage == MEMORY:
        return Limiter(processes=processes)
    from ratelimit.shared import SharedLimiter  # loads the Redis client, which nothing else needs

    return SharedLimiter(settings.rate_limit_storage, processes=max(processes, settings.rate_limit_processes))


def oidc_of(settings: Settings) -> Oidc | None:
    """Make the validator of the trusted issuer's tokens, if the settings have an issuer."""
    trusted = settings.oidc()
    if trusted is None:
        return None
    from auth.tokens.issuer_documents import oidc_client  # loads an HTTP client, which nothing else needs
    from auth.tokens.oidc import Oidc

    return Oidc(trusted, oidc_client(), clock=time.monotonic)
