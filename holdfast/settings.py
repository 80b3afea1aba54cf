"""Settings: their declaration, sources, and validation.

:class:`Settings` is the one place where a setting is named, bounded and described: the command line's help, the
environment variables (``HOLDFAST_`` and the name in capitals), the keys of the TOML file and the table in
``docs/operations.md`` all come from it.  Precedence is: command line, environment, file, default.  An unknown name is
an error, so that a misspelt one is noticed.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

import msgspec
from msgspec import Meta, Struct

from auth.credentials import check_access_key, check_account
from auth.encryption.master_keys import MasterKeysUnusable, keys_of_setting
from auth.limits import parse_limits
from backend.rpc.address import Address
from billing.metering.spool import OUTBOX_BYTES
from holdfast.networks import parse_networks
from metadata_service.nodes.ring import parse_members
from metadata_service.nodes.signing import SECRET_BYTES_MIN
from metadata_service.streams import check_stream_name
from ratelimit.address import check_redis, check_url

if TYPE_CHECKING:
    from auth.tokens.oidc import OidcSettings

PREFIX = "HOLDFAST_"
CONFIG_VARIABLE = PREFIX + "CONFIG"
"""Environment variable with the path of the TOML file, as ``--config``."""
CLIENT_VARIABLES = frozenset((PREFIX + "ENDPOINT", PREFIX + "API_KEY"))
"""Environment variables for commands that call a running service; not settings of a service."""

Seconds = Annotated[float, Meta(ge=0, le=1_209_600)]
"""Duration of up to 14 days."""


class SettingsError(Exception):
    """A setting that cannot be used.  The text names it and its source."""


class Check(NamedTuple):
    """Validator of one setting, declared beside its description; not run for None."""

    run: Callable[[Any], object]
    """Function that raises :class:`SettingsError`, or ``ValueError`` with a text to which the name is added."""


def _check_external_url(url: str) -> None:
    if not re.fullmatch(r"https?://[^/?#\s]+", url):
        raise SettingsError(f"external_url has to be like https://queue.example.com, not {url!r}")


def _check_console_scopes(scopes: str) -> None:
    if "openid" not in scopes.split(" ") or not re.fullmatch(r"[!#-\[\]-~]+( [!#-\[\]-~]+)*", scopes):
        raise SettingsError("oidc_console_scopes has to be a list with openid, such as `openid profile`")


def _check_trace_endpoint(url: str) -> None:
    if url and not re.fullmatch(r"https?://[^/?#\s@]+(/[^?#\s]*)?", url):
        raise SettingsError(
            "trace_endpoint has to be like http://collector:4318, without a user, a password or a query"
        )


def _check_trace_url(url: str) -> None:
    if url and not re.fullmatch(r"https?://[^/?#\s@{}\"'<>\\]+/[^\s{}\"'<>\\]*\{trace_id\}[^\s{}\"'<>\\]*", url):
        raise SettingsError(
            "trace_url has to be like https://grafana.example.com/trace/{trace_id}, without a user or a password"
        )


def _check_otlp_endpoint(url: str) -> None:
    if url and not re.fullmatch(r"https?://[^/?#@\s]+/?", url):
        raise SettingsError(f"otlp_endpoint has to be like http://127.0.0.1:4318, not {url!r}")


def _check_partition_rate(rate: int) -> None:
    if 0 < rate < 1000:
        raise SettingsError(f"partition_rate has to be 1000 or more, or 0 for none, not {rate}")


def _check_address(text: str) -> None:
    if text:
        Address.parse(text)


def _check_host_and_port(name: str, text: str) -> None:
    if text and Address.parse(text).path:
        raise SettingsError(f"{name} has to be host:port, not {text!r}")


def _check_cluster_secret(secret: str) -> None:
    _check_secret(secret.encode(), "cluster_secret")


def _check_secret(secret: bytes, what: str) -> None:
    if len(secret) < SECRET_BYTES_MIN:
        raise SettingsError(f"{what} has {len(secret)} bytes; it takes at least {SECRET_BYTES_MIN}")


def _check_master_key(keys: str) -> None:
    try:
        keys_of_setting(keys)
    except MasterKeysUnusable as error:
        raise SettingsError(str(error)) from None


DeclaredValue = str | int | bool | dict[str, Any]
"""Value of an attribute, which SQS and SNS have as text; numbers, booleans and tables may be written as such."""


class DeclaredQueue(Struct, frozen=True, forbid_unknown_fields=True):
    """A queue that is created, or updated to these attributes and tags, at each start."""

    name: str
    attributes: dict[str, DeclaredValue] = {}
    """Attributes as in CreateQueue."""
    tags: dict[str, str] = {}


class DeclaredSubscription(Struct, frozen=True, forbid_unknown_fields=True):
    """A subscription of a queue of the same account to a declared topic."""

    queue: str
    """Name of the queue."""
    attributes: dict[str, DeclaredValue] = {}
    """Attributes as in Subscribe."""


class DeclaredTopic(Struct, frozen=True, forbid_unknown_fields=True):
    """A topic that is created, or updated to these attributes, tags and subscriptions, at each start."""

    name: str
    attributes: dict[str, DeclaredValue] = {}
    """Attributes as in CreateTopic."""
    tags: dict[str, str] = {}
    subscriptions: tuple[DeclaredSubscription, ...] = ()


def _check_queues(queues: tuple[DeclaredQueue, ...]) -> None:
    twice = _first_repeated(queue.name for queue in queues)
    if twice is not None:
        raise SettingsError(f"queue {twice!r} is declared twice")


def _check_topics(topics: tuple[DeclaredTopic, ...]) -> None:
    twice = _first_repeated(topic.name for topic in topics)
    if twice is not None:
        raise SettingsError(f"topic {twice!r} is declared twice")
    for topic in topics:
        twice = _first_repeated(one.queue for one in topic.subscriptions)
        if twice is not None:
            raise SettingsError(f"topic {topic.name!r} declares two subscriptions of queue {twice!r}")


def _first_repeated(names: Iterable[str]) -> str | None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            return name
        seen.add(name)
    return None


class Settings(Struct, frozen=True, kw_only=True):
    """All settings, with their defaults.  Units are part of the names."""

    host: Annotated[str, Meta(description="address to listen on")] = "127.0.0.1"
    port: Annotated[int, Meta(ge=0, le=65535, description="port to listen on; 0: any free port")] = 9324
    data: Annotated[Path, Meta(description="folder of all stored data, readable only by its owner")] = Path("data")
    kafka_port: Annotated[
        int,
        Meta(
            ge=0,
            le=65535,
            description="port on which Kafka's clients are served, usually 9092; 0: none",
        ),
    ] = 0
    kafka_address: Annotated[
        str,
        Meta(
            description="address that Kafka's clients connect to for everything, `host:port`, the same for all "
            "frontends; default: `host` and `kafka_port`"
        ),
        Check(partial(_check_host_and_port, "kafka_address")),
    ] = ""
    kafka_auto_create_topics: Annotated[
        bool, Meta(description="whether a Kafka client that names a topic which does not exist may create it by that")
    ] = False
    kafka_partitions: Annotated[
        int, Meta(ge=1, le=1000, description="partitions of a new topic whose creator does not say how many")
    ] = 1
    frontends: Annotated[
        int,
        Meta(
            ge=0,
            le=256,
            description="frontend processes that share the port; 0: all in one process, unless `backends` is set",
        ),
    ] = 0
    backends: Annotated[
        int,
        Meta(
            ge=0,
            le=64,
            description="backend processes that share the queues, behind at least one frontend; 0: one if "
            "`frontends` is set",
        ),
    ] = 0
    region: Annotated[str, Meta(pattern=r"^[a-z0-9-]{1,64}$", description="region in ARNs and in signatures")] = (
        "us-east-1"
    )
    account: Annotated[str, Meta(description="account of the root tenant, 12 digits"), Check(check_account)] = (
        "000000000000"
    )
    tls_cert: Annotated[
        Path | None, Meta(description="certificate chain (PEM); with `tls_key` the service speaks HTTPS")
    ] = None
    tls_key: Annotated[Path | None, Meta(description="the certificate's private key (PEM)")] = None
    external_url: Annotated[
        str | None,
        Meta(
            description="base of queue URLs, and of links in messages of topics, such as `https://queue.example.com`; "
            "default: the request's Host"
        ),
        Check(_check_external_url),
    ] = None
    root_access_key_id: Annotated[
        str | None, Meta(description="access key id of the root tenant; default: the first start creates one")
    ] = None
    root_secret_access_key: Annotated[str | None, Meta(description="secret of `root_access_key_id`")] = None
    encryption: Annotated[
        Literal["on", "off"],
        Meta(
            description="whether messages are encrypted at rest; secrets always are, and encrypted messages "
            "stay readable"
        ),
    ] = "on"
    keyring_file: Annotated[
        Path | None,
        Meta(
            description="file of the master keys, best kept apart from the data; default: `keyring.toml` in "
            "the data folder"
        ),
    ] = None
    master_key: Annotated[
        str | None,
        Meta(
            description="master key (base64 of 32 bytes), instead of or in addition to the file; older keys "
            "follow, separated by commas"
        ),
        Check(_check_master_key),
    ] = None
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"], Meta(description="lowest level that is logged")
    ] = "info"
    log_format: Annotated[
        Literal["text", "json"],
        Meta(description="format of log lines: text for people, or JSON objects for log collectors"),
    ] = "text"
    trace_endpoint: Annotated[
        str,
        Meta(description="collector for traces (OTLP over HTTP), such as `http://collector:4318`; default: no traces"),
        Check(_check_trace_endpoint),
    ] = ""
    trace_ratio: Annotated[
        float,
        Meta(ge=0, le=1, description="fraction of calls that are traced, if the caller's headers do not decide it"),
    ] = 0.001
    trace_messages: Annotated[
        bool,
        Meta(
            description="whether a message without an AWSTraceHeader gets one from the `X-Amzn-Trace-Id` or "
            "`traceparent` header of its send"
        ),
    ] = True
    trace_url: Annotated[
        str,
        Meta(
            description="address of a trace for people, such as `https://grafana.example.com/trace/{trace_id}`, to "
            "which the console links from messages; default: no links"
        ),
        Check(_check_trace_url),
    ] = ""
    audit_file: Annotated[
        Path | None,
        Meta(description="file of the audit log, rotated at 64 MiB; default: `audit.jsonl` in the data folder"),
    ] = None
    usage: Annotated[
        Literal["on", "off"],
        Meta(description="whether calls and storage are recorded for reports and invoices, in `usage_lake`"),
    ] = "off"
    usage_lake: Annotated[
        str | None,
        Meta(description="folder or URL (`s3://`, `gs://`) of the usage lake; default: `lake` in the data folder"),
    ] = None
    usage_upload_seconds: Annotated[
        int, Meta(ge=1, le=86_400, description="approximate interval of uploads of usage records to the lake")
    ] = 300
    usage_stream: Annotated[
        str | None,
        Meta(
            description="topic of the service itself to which usage records are published too, once they are in the "
            "lake; it is created if it does not exist; default: none"
        ),
        Check(check_stream_name),
    ] = None
    usage_stream_account: Annotated[
        str | None,
        Meta(description="account that owns `usage_stream`, 12 digits; default: `account`"),
        Check(check_account),
    ] = None
    usage_stream_outbox_bytes: Annotated[
        int,
        Meta(
            ge=4 << 20,
            description="maximum bytes of records that wait on the disk for their publication to `usage_stream`; "
            "beyond it the oldest are dropped from the stream",
        ),
    ] = OUTBOX_BYTES
    oidc_issuer: Annotated[
        str | None, Meta(description="OIDC issuer whose tokens are trusted, such as `https://login.example.com`")
    ] = None
    oidc_audience: Annotated[str | None, Meta(description="audience that its tokens must name")] = None
    oidc_jwks_url: Annotated[
        str | None, Meta(description="URL of its keys; default: the one in its discovery document")
    ] = None
    oidc_account_claim: Annotated[str, Meta(description="claim that names the tenant's account")] = "holdfast_account"
    oidc_role_claim: Annotated[
        str | None, Meta(description="claim that names the role; default: every caller is a user")
    ] = None
    oidc_scopes_claim: Annotated[
        str | None, Meta(description="claim that names the scopes; default: every caller has all scopes")
    ] = None
    oidc_console_client_id: Annotated[
        Annotated[str, Meta(min_length=1)] | None,
        Meta(
            description="client id of the web console at the issuer, a public client; if set, the console offers to "
            "sign in there",
        ),
    ] = None
    oidc_console_scopes: Annotated[
        str,
        Meta(description="scopes of the issuer that the console requests, separated by spaces, `openid` among them"),
        Check(_check_console_scopes),
    ] = "openid"
    oidc_console_token: Annotated[
        Literal["access", "id"],
        Meta(
            description="token of the issuer that the console uses: the `access` token, which has to be a JWT for "
            "`oidc_audience`, or the `id` token, for which `oidc_audience` is the console's client id"
        ),
    ] = "access"
    queue_name_hold_seconds: Annotated[
        Seconds, Meta(description="time until the name of a deleted queue can be used again (SQS: 60)")
    ] = 60
    purge_interval_seconds: Annotated[
        Seconds, Meta(description="minimum time between two purges of a queue (SQS: 60)")
    ] = 60
    deduplication_window_seconds: Annotated[
        int, Meta(ge=1, le=86_400, description="time for which a FIFO queue remembers a deduplication id (SQS: 300)")
    ] = 300
    send_retry_window_seconds: Annotated[
        int,
        Meta(
            ge=0,
            le=900,
            description="time for which a send repeated with the same token is not stored again; 0: every "
            "send is stored",
        ),
    ] = 60
    in_flight_limit: Annotated[
        int, Meta(ge=1, le=10_000_000, description="maximum number of messages of a queue in flight (SQS: 120000)")
    ] = 120_000
    auto_create_queues: Annotated[
        bool, Meta(description="whether sending to a queue that does not exist creates it")
    ] = False
    forbid_deleting_nonempty_queues: Annotated[
        bool, Meta(description="whether DeleteQueue is refused while messages are stored")
    ] = False
    console: Annotated[bool, Meta(description="whether frontends serve the web console at `/console`")] = True
    sns: Annotated[bool, Meta(description="whether topics of SNS's protocol are served")] = True
    default_limits: Annotated[
        str,
        Meta(
            description="limits of tenants without limits of their own, such as `calls=1000:5000 queues=500`; "
            "default: none"
        ),
        Check(parse_limits),
    ] = ""
    rate_limit_storage: Annotated[
        str,
        Meta(
            description="storage of rate counters: `memory://`, or for several processes a Redis, "
            "`redis://host:port/database`, `rediss://…` or `unix:///path`"
        ),
        Check(check_url),
    ] = "memory://"
    rate_limit_processes: Annotated[
        int,
        Meta(
            ge=1,
            le=10_000,
            description="number of processes that share the Redis, used until the Redis reports the number",
        ),
    ] = 1
    metadata_nodes: Annotated[
        str,
        Meta(
            description="all metadata nodes, separated by commas, such as "
            "`m1=http://10.0.0.1:9401,m2=http://10.0.0.2:9401`; after an address `;zone=NAME`, `;weight=2`"
        ),
        Check(parse_members),
    ] = ""
    metadata_nodes_version: Annotated[
        int,
        Meta(
            ge=1,
            description="version of `metadata_nodes`; raise it with each change, the list with the highest "
            "version wins",
        ),
    ] = 1
    metadata_node: Annotated[
        str | None, Meta(description="name of this process in `metadata_nodes`; it listens on that port")
    ] = None
    metadata_full_copy: Annotated[
        bool, Meta(description="whether every metadata node keeps all queues in memory, for small installations")
    ] = False
    metadata_invalidation: Annotated[
        str | None,
        Meta(
            description="Redis through which metadata nodes announce changed queues at once, in the format of "
            "`rate_limit_storage`; default: caches notice changes later"
        ),
        Check(check_redis),
    ] = None
    cluster: Annotated[
        str,
        Meta(
            pattern="^[a-z][a-z0-9-]{0,31}$",
            description="name of the backend cluster of this process: lower-case letters, digits and -",
        ),
    ] = "local"
    cassandra: Annotated[
        str,
        Meta(
            description="Cassandra nodes to connect to first, separated by commas; Cassandra then replaces "
            "the data folder"
        ),
    ] = ""
    cassandra_port: Annotated[int, Meta(ge=1, le=65535, description="port of every Cassandra node")] = 9042
    cassandra_keyspace: Annotated[str, Meta(description="keyspace of the metadata; created if it is missing")] = (
        "holdfast"
    )
    cassandra_cluster_keyspace: Annotated[
        str,
        Meta(
            description="keyspace of the backend cluster's entries and journal, created if it is missing; "
            "default: `cassandra_keyspace`, `_` and the cluster's name"
        ),
    ] = ""
    cassandra_replication: Annotated[
        str, Meta(description="replicas in each data centre, for a keyspace that is created")
    ] = "datacenter1=3"
    cassandra_scope: Annotated[
        str,
        Meta(
            description="data centre whose quorum decides, fixed when the tables are created; default: the "
            "quorum of all"
        ),
    ] = ""
    cassandra_datacenter: Annotated[
        str, Meta(description="data centre whose nodes are queried; default: `cassandra_scope`, or any")
    ] = ""
    cassandra_user: Annotated[str, Meta(description="user of Cassandra")] = ""
    cassandra_password: Annotated[str, Meta(description="password of `cassandra_user`")] = ""
    cassandra_tls_ca: Annotated[
        Path | None,
        Meta(
            description="CA certificates (PEM) for Cassandra; if set, connections to Cassandra are encrypted, "
            "and each node's certificate has to name its IP address"
        ),
    ] = None
    cassandra_tls_cert: Annotated[
        Path | None, Meta(description="client certificate chain (PEM) for Cassandra, if it requires one")
    ] = None
    cassandra_tls_key: Annotated[Path | None, Meta(description="private key (PEM) of `cassandra_tls_cert`")] = None
    cassandra_strict: Annotated[
        bool, Meta(description="whether to refuse a Cassandra that may lose acknowledged writes")
    ] = False
    schema_migration: Annotated[
        Literal["start", "wait"],
        Meta(
            description="action if the schema in Cassandra is older or missing: `start`: the process migrates "
            "it; `wait`: it waits for `holdfast schema migrate`"
        ),
    ] = "start"
    backend_node: Annotated[
        Annotated[str, Meta(pattern=r"^[A-Za-z0-9._-]{1,64}$")] | None,
        Meta(description="name of a backend in its cluster; it has to keep the name when it restarts"),
    ] = None
    listen: Annotated[
        str,
        Meta(
            description="address on which a backend listens for frontends and other nodes: `host:port` or `unix:/path`"
        ),
        Check(_check_address),
    ] = ""
    advertise: Annotated[
        str,
        Meta(description="`host:port` by which others reach a backend, if it differs from `listen`"),
        Check(_check_address),
    ] = ""
    health_listen: Annotated[
        str,
        Meta(
            description="`host:port` for health checks (`GET /health/live`, `/health/ready`) and Prometheus "
            "(`GET /metrics`), in plain HTTP; default: not served",
        ),
        Check(partial(_check_host_and_port, "health_listen")),
    ] = ""
    otlp_endpoint: Annotated[
        str,
        Meta(
            description="URL of an OpenTelemetry collector for metrics (OTLP over HTTP), such as "
            "`http://127.0.0.1:4318`; default: metrics are not sent"
        ),
        Check(_check_otlp_endpoint),
    ] = ""
    otlp_metrics_seconds: Annotated[
        int, Meta(ge=1, le=3600, description="interval at which metrics are sent to `otlp_endpoint`")
    ] = 60
    partition_rate: Annotated[
        int,
        Meta(
            ge=0,
            description="messages a second, sent plus received, above which the manager splits a partition of "
            "a standard queue; at least 1000, or 0: only an operator splits queues",
        ),
        Check(_check_partition_rate),
    ] = 5000
    cluster_tls_ca: Annotated[
        Path | None,
        Meta(
            description="CA certificate (PEM) for the certificates of all processes of the cluster; if set, "
            "they use mutual TLS with each other"
        ),
    ] = None
    cluster_tls_cert: Annotated[
        Path | None, Meta(description="certificate (PEM) of this process for the others of the cluster")
    ] = None
    cluster_tls_key: Annotated[Path | None, Meta(description="private key (PEM) of `cluster_tls_cert`")] = None
    cluster_secret: Annotated[
        str | None,
        Meta(
            description="shared secret by which the processes of a cluster authenticate each other: at least "
            "16 characters, hard to guess"
        ),
        Check(_check_cluster_secret),
    ] = None
    cluster_secret_file: Annotated[
        Path | None, Meta(description="file that contains the `cluster_secret`, instead of the setting")
    ] = None
    segment_bytes: Annotated[
        int, Meta(ge=1 << 21, le=1 << 27, description="size of a segment of the journal, preallocated on disk")
    ] = 1 << 25
    memory_limit: Annotated[
        int,
        Meta(
            ge=0,
            description="bytes of memory for message state other than bodies, some 40 for each message; above "
            "it sends are refused; 0: no limit",
        ),
    ] = 0
    alarms: Annotated[
        Literal["on", "off"],
        Meta(description="`off`: tenants cannot set alarms on their queues, and existing alarms do not fire"),
    ] = "on"
    alarm_seconds: Annotated[
        float, Meta(ge=1, le=60, description="interval at which alarms on queues are evaluated, in seconds")
    ] = 60
    webhook_networks: Annotated[
        str,
        Meta(
            description="private addresses and networks, separated by commas, in which webhooks of tenants' "
            "alarms and endpoints of queues and topics that push are allowed, with or without TLS; all others need a "
            "public address and https"
        ),
        Check(parse_networks),
    ] = ""
    push: Annotated[
        Literal["on", "off"],
        Meta(description="`off`: queues and topics cannot push to HTTP endpoints, and existing ones do not"),
    ] = "on"
    availability_objective: Annotated[
        float,
        Meta(
            ge=0,
            lt=100,
            description="availability objective of a tenant's month for `holdfast availability`, in percent",
        ),
    ] = 99.9
    trusted_proxies: Annotated[
        str,
        Meta(
            description="addresses and networks, separated by commas, of proxies whose headers are trusted "
            "for the client's address and for HTTPS"
        ),
        Check(parse_networks),
    ] = ""
    forwarded_header: Annotated[
        Literal["x-forwarded-for", "forwarded"],
        Meta(description="headers that these proxies set: `x-forwarded-for` with `x-forwarded-proto`, or `forwarded`"),
    ] = "x-forwarded-for"
    connections_limit: Annotated[
        int, Meta(ge=1, le=1_000_000, description="maximum number of connections; further ones are answered 503")
    ] = 10_000
    connections_per_client_limit: Annotated[
        Annotated[int, Meta(ge=1)] | None,
        Meta(
            description="maximum number of connections from one address (of IPv6: one /64 network) that is no "
            "trusted proxy; default: no limit",
        ),
    ] = None
    request_read_seconds: Annotated[
        float, Meta(gt=0, le=3600, description="time within which a request has to arrive completely")
    ] = 30
    idle_seconds: Annotated[
        float, Meta(gt=0, le=86_400, description="time after which a connection without a request is closed")
    ] = 300
    drain_seconds: Annotated[
        float, Meta(ge=0, le=3600, description="maximum time for calls in progress at shutdown")
    ] = 30
    queues: Annotated[
        tuple[DeclaredQueue, ...],
        Meta(description="queues that are created, or updated to these attributes and tags, at each start (file only)"),
        Check(_check_queues),
    ] = ()
    topics: Annotated[
        tuple[DeclaredTopic, ...],
        Meta(
            description="topics that are created, or updated to these attributes, tags and subscriptions of queues, at "
            "each start; only with `sns` (file only)"
        ),
        Check(_check_topics),
    ] = ()

    def __repr__(self) -> str:
        """Representation without the secrets."""
        return "Settings(...)"

    def oidc(self) -> OidcSettings | None:
        """Return the settings of the trusted issuer, if there is one.  Raises ``ValueError``."""
        if self.oidc_issuer is None or self.oidc_audience is None:
            return None
        from auth.tokens.oidc import ConsoleClient, OidcSettings  # imported on demand: it loads an HTTP client

        console = None
        if self.oidc_console_client_id is not None:
            console = ConsoleClient(self.oidc_console_client_id, self.oidc_console_scopes, self.oidc_console_token)
        return OidcSettings(
            self.oidc_issuer,
            self.oidc_audience,
            self.oidc_jwks_url,
            self.oidc_account_claim,
            self.oidc_role_claim,
            self.oidc_scopes_claim,
            console,
        )

    @property
    def metadata_file(self) -> Path:
        return self.data / "metadata.sqlite"

    @property
    def audit_path(self) -> Path:
        return self.audit_file or self.data / "audit.jsonl"

    @property
    def usage_folder(self) -> Path:
        return self.data / "usage"

    @property
    def usage_outbox_folder(self) -> Path:
        return self.data / "usage-stream"

    @property
    def lake(self) -> str:
        return self.usage_lake or os.fspath(self.data / "lake")

    @property
    def journal_folder(self) -> Path:
        return self.data / "journal"


CLUSTER_TLS = ("cluster_tls_ca", "cluster_tls_cert", "cluster_tls_key")
_SECRET = ("root_secret_access_key", "master_key", "cluster_secret", "metadata_invalidation", "cassandra_password")
"""Settings whose values no error repeats."""
_FIELDS = {field.name: field for field in msgspec.structs.fields(Settings)}


def load(
    arguments: Mapping[str, Any],
    environment: Mapping[str, str],
    config: Path | None = None,
) -> Settings:
    """Load the settings.  ``arguments``: values from the command line, by the setting's name.

    Raises :class:`SettingsError`.
    """
    from_environment, config_from_environment = _from_environment(environment)
    file = config or config_from_environment
    values: dict[str, Any] = {}
    if file is not None:
        values.update(_from_file(file))
    values.update(from_environment)
    values.update({name: _convert(name, value, _flag(name)) for name, value in arguments.items()})
    settings = Settings(**values)
    _check(settings)
    return settings


_ONLY_IN_FILE = frozenset(("queues", "topics"))
"""Settings that have no environment variable."""


def _from_environment(environment: Mapping[str, str]) -> tuple[dict[str, Any], Path | None]:
    values: dict[str, Any] = {}
    for variable, value in environment.items():
        if not variable.startswith(PREFIX) or variable == CONFIG_VARIABLE or variable in CLIENT_VARIABLES:
            continue
        name = variable.removeprefix(PREFIX).lower()
        if name not in _FIELDS or name in _ONLY_IN_FILE or variable != PREFIX + name.upper():
            raise SettingsError(f"{variable} in the environment is not a setting of Holdfast")
        values[name] = _convert(name, value, variable)
    config = environment.get(CONFIG_VARIABLE)
    return values, Path(config) if config else None


def _from_file(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            content = tomllib.load(file)
    except OSError as error:
        raise SettingsError(f"the settings file {path} cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"the settings file {path} is not TOML: {error}") from error
    unknown = sorted(content.keys() - _FIELDS.keys())
    if unknown:
        raise SettingsError(f"unknown in the settings file {path}: {', '.join(unknown)}")
    return {name: _convert(name, value, f"{name} in {path}", strict=True) for name, value in content.items()}


_WANTED = {
    "Expected `int`": "it has to be a whole number",
    "Expected `int | null`": "it has to be a whole number",
    "Expected `float`": "it has to be a number",
    "Expected `bool`": "it has to be true or false",
}


def _convert(name: str, value: Any, given_as: str, *, strict: bool = False) -> Any:
    """Convert a value to the setting's type, within its bounds.  Text is accepted for numbers unless ``strict``."""
    try:
        return msgspec.convert(value, _FIELDS[name].type, strict=strict, dec_hook=_path)
    except msgspec.ValidationError as error:
        shown = "this" if name in _SECRET or isinstance(value, (list, dict)) else repr(value)
        reason = str(error)
        for expected, wanted in _WANTED.items():
            if reason.startswith(expected + ", got"):
                reason = wanted
        raise SettingsError(f"{given_as} cannot be {shown}: {reason}") from None


def _path(type_: type, value: Any) -> Any:
    if issubclass(type_, Path) and isinstance(value, str) and value:
        return Path(value).expanduser()
    raise msgspec.ValidationError("Expected a path")


def _check(settings: Settings) -> None:
    """Check each setting, then the rules that concern several."""
    for name, field in _FIELDS.items():
        value = getattr(settings, name)
        if value is not None:
            _check_one(name, value, field.type)
    if settings.cluster_secret is not None and settings.cluster_secret_file is not None:
        raise SettingsError("cluster_secret and cluster_secret_file cannot both be given")
    given = [name for name in CLUSTER_TLS if getattr(settings, name) is not None]
    if given and len(given) < len(CLUSTER_TLS):
        raise SettingsError(
            f"{', '.join(CLUSTER_TLS)} can only be given together, but only {', '.join(given)} is given"
        )
    for one, other in (
        ("tls_cert", "tls_key"),
        ("root_access_key_id", "root_secret_access_key"),
        ("cassandra_tls_cert", "cassandra_tls_key"),
    ):
        if (getattr(settings, one) is None) != (getattr(settings, other) is None):
            raise SettingsError(f"{one} and {other} can only be given together")
    if settings.root_access_key_id is not None and settings.root_secret_access_key is not None:
        try:
            check_access_key(settings.root_access_key_id, settings.root_secret_access_key)
        except ValueError as error:
            raise SettingsError(f"root access key: {error}") from None
    if (settings.oidc_issuer is None) != (settings.oidc_audience is None):
        raise SettingsError("oidc_issuer and oidc_audience can only be given together")
    client = settings.oidc_console_client_id
    if client is not None and settings.oidc_issuer is None:
        raise SettingsError("oidc_console_client_id needs oidc_issuer and oidc_audience")
    if client is not None and settings.oidc_console_token == "id" and client != settings.oidc_audience:
        raise SettingsError(
            'oidc_console_token = "id" needs oidc_console_client_id as the oidc_audience: ID tokens are for the client'
        )
    try:
        settings.oidc()
    except ValueError as error:
        raise SettingsError(f"oidc_issuer: {error}") from None
    if settings.topics and not settings.sns:
        raise SettingsError(
            f"topics: topic {settings.topics[0].name!r} is declared, and sns is off: set sns = true, or remove the "
            "topics"
        )
    if settings.cassandra_tls_cert is not None and settings.cassandra_tls_ca is None:
        raise SettingsError("cassandra_tls_cert needs cassandra_tls_ca: without it connections are not encrypted")


def _check_one(name: str, value: Any, type_: Any) -> None:
    for check in type_.__metadata__:
        if isinstance(check, Check):
            try:
                check.run(value)
            except ValueError as error:
                raise SettingsError(f"{name}: {error}") from None


def is_distributed(settings: Settings) -> bool:
    """Return whether data are stored outside the data folder."""
    return bool(settings.cassandra or settings.metadata_nodes)


def cluster_secret(settings: Settings) -> bytes:
    """Return the secret that the processes of the cluster share.  Raises :class:`SettingsError` if there is none."""
    file = settings.cluster_secret_file
    if file is None:
        if settings.cluster_secret is None:
            raise SettingsError("the processes of a cluster need a cluster_secret or a cluster_secret_file")
        return settings.cluster_secret.encode()
    try:
        secret = file.read_bytes().strip()
    except OSError as error:
        raise SettingsError(f"cluster_secret_file {file} cannot be read: {error.strerror}") from error
    _check_secret(secret, f"the secret in {file}")
    return secret


# --- their documentation -----------------------------------------------------------------------------


class Described(Struct, frozen=True):
    """A setting as shown in help and documentation."""

    name: str
    default: str
    description: str

    @property
    def variable(self) -> str:
        return PREFIX + self.name.upper()


def describe() -> Iterator[Described]:
    """Iterate over all settings, in order."""
    for name, field in _FIELDS.items():
        default = field.default
        if isinstance(default, bool):
            shown = str(default).lower()
        else:
            shown = "" if default is None or default == () else str(default)
        yield Described(name=name, default=shown, description=_description(field.type))


def describe_one(name: str) -> Described:
    return next(described for described in describe() if described.name == name)


def _description(type_: Any) -> str:
    texts = [meta.description for meta in type_.__metadata__ if isinstance(meta, Meta) and meta.description]
    assert len(texts) == 1, "each setting has one description"
    return str(texts[0])


def table() -> str:
    """Return the settings as the Markdown table of ``docs/operations.md``."""
    rows = ["| setting (file) | environment | default | meaning |", "|---|---|---|---|"]
    for setting in describe():
        variable = "" if setting.name in _ONLY_IN_FILE else f"`{setting.variable}`"
        default = f"`{setting.default}`" if setting.default else ""
        rows.append(f"| `{setting.name}` | {variable} | {default} | {setting.description} |")
    return "\n".join(rows) + "\n"


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")
