"""Diagnosis of a service on many machines: its Cassandra and Redis, one of its backend clusters, and this
machine's keys and certificates."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from auth.encryption.keyring import Keyring
from auth.encryption.master_keys import KeyringError
from backend.api import SHARDS
from backend.cluster.liveness import live_nodes
from holdfast.doctor import shared_redis
from holdfast.doctor.findings import Finding, certificate, note, secret_file, warning, wrong
from holdfast.http.certificate import CertificateUnusable
from holdfast.runtime.keyring import keyring_path, local_master_keys
from holdfast.runtime.peer_tls import peer_tls
from holdfast.runtime.stores import Stores, cluster_keyspace, connection_settings, replication_of
from holdfast.settings import Settings, SettingsError, cluster_secret
from metadata_service.models import ClusterEntry, ClusterReport, Heartbeat, LogEntry, ShardEntry
from metadata_service.schema import RESTORE_AGAIN
from metadata_service.store import MemberStore, MetadataStore, StoreError

if TYPE_CHECKING:  # the driver is large, and not needed with metadata nodes only
    from metadata_service.cassandra.driver.connection import CassandraConnection

SKEW_MS: Final = 2_000
BEAT_MS: Final = 1_500
"""Maximum age of a heartbeat when it is read."""
REPORT_SECONDS: Final = 15.0
REPLICAS_MIN: Final = 3
_OPEN_SECONDS: Final = 30.0
"""Time for which Cassandra's nodes may stand still: less than a process of the service waits for them."""


def check(settings: Settings) -> Iterator[Finding]:
    """All findings, as seen from this machine."""
    yield from _files(settings)
    yield from shared_redis.check(settings)
    yield from asyncio.run(_check(settings))


def _files(settings: Settings) -> Iterator[Finding]:
    for path in (settings.cluster_tls_cert, settings.cluster_tls_ca, settings.tls_cert, settings.cassandra_tls_ca):
        if path is not None:
            yield from certificate(path)
    for key in (settings.cluster_tls_key, settings.tls_key, settings.cassandra_tls_key):
        if key is not None:
            yield from secret_file(key, "the private key", group=True)
    if settings.cluster_secret_file is not None:
        yield from secret_file(settings.cluster_secret_file, "the secret of the cluster", group=True)
    if keyring_path(settings).exists():
        yield from secret_file(keyring_path(settings), "the keyring file", group=True)
    if settings.cluster_tls_cert is None:
        yield note(
            "the processes speak with each other without TLS",
            "protect the network between them, or set cluster_tls_ca, _cert and _key",
        )
    try:
        cluster_secret(settings)
        peer_tls(settings)
    except (SettingsError, CertificateUnusable) as error:
        yield wrong(str(error), "without it this machine's processes do not start")


async def _check(settings: Settings) -> list[Finding]:
    found: list[Finding] = []
    try:
        stores = Stores(settings, peer_tls(settings))
    except CertificateUnusable:
        return found  # already reported
    try:
        if settings.cassandra and not await _cassandra(settings, found):
            return found
        found += await _metadata(settings, await stores.metadata())
        if settings.cassandra:
            found += await _cluster(settings, await stores.entries())
    except (StoreError, SettingsError) as error:
        found.append(wrong(str(error), "check the named machines and their logs"))
    finally:
        await stores.close()
    return found


# --- Cassandra ------------------------------------------------------------------------------------------


async def _cassandra(settings: Settings, found: list[Finding]) -> bool:
    """Examine Cassandra without creating anything; True if its contents can be examined."""
    from holdfast.runtime import schema_cassandra
    from metadata_service.cassandra.driver.connection import CassandraConnection
    from metadata_service.cassandra.driver.keyspace import CassandraKeyspace

    connection = await CassandraConnection.open(connection_settings(settings), wait_seconds=_OPEN_SECONDS)
    try:
        if unsafe := await connection.unsafe_commit_logs():
            found.append(wrong(unsafe, "set it, and restart the Cassandra nodes one by one"))
        found += _nodes(connection)
        there = True
        for keyspace in dict.fromkeys((settings.cassandra_keyspace, cluster_keyspace(settings))):
            if await CassandraKeyspace(connection, keyspace).tables() is None:
                there = False
                todo = "the first start of the service creates it; or do these settings differ from the service's?"
                found.append(wrong(f"Cassandra has no keyspace {keyspace}", todo))
            else:
                found += _replicas(connection, keyspace, settings)
    finally:
        await connection.close()
    if not there:
        return False
    for kept, stored in await schema_cassandra.show(settings):
        known = kept.part.schema
        what = f"the schema of the {kept.part.name} in the keyspace {kept.keyspace} has version {stored.version}"
        if stored.restoring:
            found.append(wrong(f"the keyspace {kept.keyspace} has an incomplete restore", RESTORE_AGAIN))
            there = False
        elif stored.oldest > known.version:
            found.append(wrong(f"{what}, and this program knows only {known.version}", "use the newer release"))
            there = False
        elif 0 < stored.leaving <= known.version:
            found.append(
                wrong(f"{what}, being rolled back from {stored.leaving}", "run holdfast schema rollback again")
            )
            there = False
        elif stored.version < known.version:
            found.append(warning(f"{what}, and this program's is {known.version}", "run holdfast schema migrate"))
            there = False
    return there


def _nodes(connection: CassandraConnection) -> Iterator[Finding]:
    hosts = connection.cluster.metadata.all_hosts()
    down = sorted(str(host.address) for host in hosts if not host.is_up)
    if down:
        yield wrong(f"of {len(hosts)} Cassandra nodes these are down: {', '.join(down)}", "start them")


def _replicas(connection: CassandraConnection, keyspace: str, settings: Settings) -> Iterator[Finding]:
    strategy = connection.cluster.metadata.keyspaces[keyspace].replication_strategy
    has: dict[str, int] = getattr(strategy, "dc_replication_factors", {})  # of the only strategy that Holdfast uses
    shown = ", ".join(f"{name}={count}" for name, count in has.items())
    for name, count in has.items():
        if count < REPLICAS_MIN:
            what = "one lost machine loses all data" if count == 1 else "the service stops when one machine is down"
            yield warning(
                f"the keyspace {keyspace} has {count} replica{'' if count == 1 else 's'} in {name}: {what}",
                f"give it {REPLICAS_MIN} (ALTER KEYSPACE, then nodetool repair --full), unless it is for tests",
            )
    wanted = replication_of(settings.cassandra_replication) if settings.cassandra_replication else {}
    if wanted and wanted != has:
        yield warning(
            f"the keyspace {keyspace} is replicated as {shown}, and the settings (cassandra_replication) say "
            f"{settings.cassandra_replication}, which applies only when a keyspace is created",
            "change one of them",
        )


# --- the metadata ---------------------------------------------------------------------------------------


async def _metadata(settings: Settings, store: MetadataStore) -> list[Finding]:
    found: list[Finding] = []
    now_s = time.time()
    clusters = {one.number: one for one in await store.clusters.backend_clusters()}
    reports = {one.cluster: one for one in await store.clusters.cluster_reports()}
    for number, cluster in clusters.items():
        found += _report(cluster.name, reports.get(number), now_s)
        if cluster.state == "retiring":
            found.append(note(f"the cluster {cluster.name} is being retired"))
        if cluster.drained:
            found.append(
                note(f"nodes of {cluster.name} are being drained by an operator: {', '.join(cluster.drained)}")
            )
    manager = await store.clusters.manager()
    silent = now_s - manager.time_ms / 1000
    if len(clusters) > 1 and (not manager.manager or silent > REPORT_SECONDS):
        since = f"reported {silent:.0f} s ago" if manager.manager else "never ran"
        found.append(
            warning(f"the manager of all clusters {since}: no queue is split or moved", "start holdfast manager")
        )
    masters = None
    try:
        masters = local_master_keys(settings)
        if masters is None:
            found.append(note("this machine has no keyring, which frontends need", "name it with --keyring-file"))
        else:
            await Keyring(store, masters).check(rewrap=False)
    except KeyringError as error:
        found.append(
            wrong(f"the keyring of this machine cannot decrypt the stored data: {error}", "install the right one")
        )
    return found


def _report(name: str, report: ClusterReport | None, now_s: float) -> Iterator[Finding]:
    if report is None:
        yield warning(f"the cluster {name} has never reported", "start its backends")
        return
    silent = now_s - report.time_ms / 1000
    if silent > REPORT_SECONDS:
        yield wrong(
            f"the manager of the cluster {name} has not reported for {silent:.0f} s",
            "are its backends up, and are the clocks of the machines right?",
        )
        return
    if report.unassigned:
        yield wrong(f"{report.unassigned} shards of {name} are not served", "start its backends; read their logs")
    for node in report.nodes:
        if node.gone:
            continue  # reported from the entries of its cluster
        if not node.live:
            yield wrong(f"the node {node.name} of {name} has been silent for {node.silent_ms / 1000:.0f} s", "start it")
        elif node.unreachable:
            yield wrong(
                f"the node {node.name} of {name} is live, but most callers of the cluster cannot reach it",
                f"check the network to {node.address}",
            )
        if node.storage > 0.9:
            yield warning(f"the node {node.name} of {name} has used {node.storage:.0%} of its storage", "free space")


# --- a backend cluster ----------------------------------------------------------------------------------


async def _cluster(settings: Settings, entries: MemberStore) -> list[Finding]:
    beats, live = await entries.heartbeats(), await live_nodes(entries)
    now_ms = time.time() * 1000
    seen = await entries.poll_entries()
    found = list(_owners(settings.cluster, seen.logs, seen.shards, live))
    found += _silent(settings.cluster, beats, seen.logs, live)
    found += _clocks([beat for beat in await entries.heartbeats() if beat.node in live], now_ms)
    found += _pins(await entries.cluster(), now_ms)
    if not beats:
        found.append(warning(f"no backend of the cluster {settings.cluster} has ever run", "start holdfast backend"))
    return found


def _owners(cluster: str, logs: list[LogEntry], shards: list[ShardEntry], live: set[str]) -> Iterator[Finding]:
    known = {entry.log_id: entry for entry in logs}
    owned: dict[str, int] = {}
    nobodys = SHARDS - len(shards)
    damaged = [entry.shard for entry in shards if entry.stopped]
    for entry in shards:
        log = known.get(entry.owner_log)
        if log is None or log.state == "sealed":
            nobodys += 1
        else:
            owned[log.node] = owned.get(log.node, 0) + 1
    for node, count in sorted(owned.items()):
        if node not in live:
            yield wrong(
                f"the node {node} of {cluster} has {count} shards and sends no heartbeats",
                "start it, or another backend",
            )
    if nobodys and live:
        yield wrong(f"{nobodys} shards of {cluster} have no owner", "if it lasts, read the log of its manager")
    if damaged:
        yield wrong(
            f"shards of {cluster} have queues that cannot be served because the journal is damaged: "
            f"{', '.join(map(str, damaged))}",
            "stop its backends and run: holdfast damage",
        )
    for log in logs:
        if log.state == "recovering" and log.log_id in {entry.owner_log for entry in shards}:
            yield warning(f"the log {log.log_id} of the node {log.node} is being recovered", "wait for it")


def _silent(cluster: str, beats: list[Heartbeat], logs: list[LogEntry], live: set[str]) -> Iterator[Finding]:
    """Nodes that died and whose shards were taken over."""
    sealed = {entry.log_id for entry in logs if entry.state == "sealed"}
    for beat in beats:
        if beat.address and beat.node not in live and beat.log_id in sealed:
            yield warning(
                f"the node {beat.node} of {cluster} has died, and other nodes have its shards",
                "start it again; if it is removed for good, nothing has to be done",
            )


def _clocks(beats: list[Heartbeat], now_ms: float) -> Iterator[Finding]:
    for beat in beats:
        behind = now_ms - beat.time_ms
        if not -SKEW_MS < behind < SKEW_MS + BEAT_MS:
            how = f"{abs(behind) / 1000:.0f} s {'behind' if behind > 0 else 'ahead of'}"
            yield warning(
                f"the clock of the node {beat.node} is {how} this machine's",
                "set the clocks (chrony, ntpd); signatures fail from 15 minutes on; the queues' time is not affected",
            )


def _pins(entry: ClusterEntry, now_ms: float) -> Iterator[Finding]:
    for pin in entry.pins:
        if pin.until_ms > now_ms:
            yield note(f"the backup {pin.name} pins the data that it copies")
