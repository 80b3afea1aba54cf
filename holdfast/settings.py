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
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from auth.credentials import check_access_key, check_account
from auth.encryption.master_keys import MasterKeysUnusable, keys_of_setting
from auth.limits import parse_limits
from backend.rpc.address import Address
from holdfast.http.proxies import parse_networks
from metadata_service.nodes.ring import ViewInvalid, parse_members
from metadata_service.nodes.signing import SECRET_BYTES_LEAST
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


class DeclaredQueue(Struct, frozen=True, forbid_unknown_fields=True):
    """A queue that is created, or updated to these attributes and tags, at each start."""

    name: str
    attributes: dict[str, str | int | bool | dict[str, Any]] = {}
    """Attributes as in CreateQueue; numbers, booleans and tables may be written as such."""
    tags: dict[str, str] = {}


class Settings(Struct, frozen=True, kw_only=True):
    """All settings, with their defaults.  Units are part of the names."""

    host: Annotated[str, Meta(description="address to listen on")] = "127.0.0.1"
    port: Annotated[int, Meta(ge=0, le=65535, description="port to listen on; 0 takes a free one")] = 9324
    data: Annotated[Path, Meta(description="folder of everything that is kept; nobody else may read it")] = Path("data")
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
            description="backend processes that share the queues, behind `frontends`, of which there is at least one "
            "then; 0: one, where there are frontends",
        ),
    ] = 0
    region: Annotated[
        str, Meta(pattern=r"^[a-z0-9-]{1,64}$", description="region in ARNs, and the one that signatures are made for")
    ] = "us-east-1"
    account: Annotated[str, Meta(description="the root tenant's account, 12 digits")] = "000000000000"
    tls_cert: Annotated[
        Path | None, Meta(description="certificate chain (PEM); with `tls_key` the service speaks HTTPS")
    ] = None
    tls_key: Annotated[Path | None, Meta(description="the certificate's private key (PEM)")] = None
    external_url: Annotated[
        str | None,
        Meta(description="beginning of queue URLs, such as `https://queue.example.com`; without it the request's Host"),
    ] = None
    root_access_key_id: Annotated[
        str | None, Meta(description="the root tenant's access key; without it the first start makes one")
    ] = None
    root_secret_access_key: Annotated[str | None, Meta(description="the secret of `root_access_key_id`")] = None
    encryption: Annotated[
        Literal["on", "off"],
        Meta(
            description="whether messages are stored encrypted; secrets always are, what was encrypted stays readable"
        ),
    ] = "on"
    keyring_file: Annotated[
        Path | None,
        Meta(
            description="file of the master keys; without it `keyring.toml` in the data folder, better kept elsewhere"
        ),
    ] = None
    master_key: Annotated[
        str | None,
        Meta(description="master key (base64 of 32 bytes), instead of or before the file's; older ones after commas"),
    ] = None
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"], Meta(description="the least that is worth a line in the log")
    ] = "info"
    log_format: Annotated[
        Literal["text", "json"],
        Meta(description="what a line of the log is: text for people, or a JSON object for what collects logs"),
    ] = "text"
    trace_endpoint: Annotated[
        str,
        Meta(
            description="collector that traces are sent to by OTLP over HTTP, such as `http://collector:4318`; without "
            "it there are none"
        ),
    ] = ""
    trace_ratio: Annotated[
        float,
        Meta(ge=0, le=1, description="part of the calls that leave a trace, of those whose caller leaves that open"),
    ] = 0.001
    trace_messages: Annotated[
        bool,
        Meta(
            description="whether a message that has no AWSTraceHeader gets one from the `X-Amzn-Trace-Id` or the "
            "`traceparent` of the call that sends it"
        ),
    ] = True
    audit_file: Annotated[
        Path | None,
        Meta(description="file of the audit log, rotated at 64 MiB; without it `audit.jsonl` in the data folder"),
    ] = None
    usage: Annotated[
        Literal["on", "off"],
        Meta(description="whether calls and storage are recorded for reports and invoices, in `usage_lake`"),
    ] = "off"
    usage_lake: Annotated[
        str | None,
        Meta(description="folder or URL (`s3://`, `gs://`) of the usage lake; without it `lake` in the data folder"),
    ] = None
    usage_upload_seconds: Annotated[
        int, Meta(ge=1, le=86_400, description="about how often what was recorded is brought to the lake")
    ] = 300
    oidc_issuer: Annotated[
        str | None, Meta(description="OIDC issuer whose tokens are trusted, such as `https://login.example.com`")
    ] = None
    oidc_audience: Annotated[str | None, Meta(description="audience that its tokens must be made for")] = None
    oidc_jwks_url: Annotated[
        str | None, Meta(description="where its keys are; without it, where its discovery document says")
    ] = None
    oidc_account_claim: Annotated[str, Meta(description="claim that names the tenant's account")] = "holdfast_account"
    oidc_role_claim: Annotated[
        str | None, Meta(description="claim that names the role; without it everybody is a user")
    ] = None
    oidc_scopes_claim: Annotated[
        str | None, Meta(description="claim that names the scopes; without it everybody has all")
    ] = None
    queue_name_hold_seconds: Annotated[
        Seconds, Meta(description="how long the name of a deleted queue stays taken (SQS: 60)")
    ] = 60
    purge_interval_seconds: Annotated[
        Seconds, Meta(description="least time between two purges of a queue (SQS: 60)")
    ] = 60
    deduplication_window_seconds: Annotated[
        int, Meta(ge=1, le=86_400, description="how long a FIFO queue knows a deduplication id (SQS: 300)")
    ] = 300
    send_retry_window_seconds: Annotated[
        int,
        Meta(
            ge=0,
            le=900,
            description="how long a send that a client repeats with the same token is not stored again; 0: not at all",
        ),
    ] = 60
    in_flight_limit: Annotated[
        int, Meta(ge=1, le=10_000_000, description="most messages of a queue in flight at once (SQS: 120000)")
    ] = 120_000
    auto_create_queues: Annotated[
        bool, Meta(description="whether sending to a queue that does not exist creates it")
    ] = False
    forbid_deleting_nonempty_queues: Annotated[
        bool, Meta(description="whether DeleteQueue is refused while messages are stored")
    ] = False
    default_limits: Annotated[
        str,
        Meta(
            description="limits of tenants that have none of their own, such as `calls=1000:5000 queues=500`; "
            "without it none"
        ),
    ] = ""
    rate_limit_storage: Annotated[
        str,
        Meta(
            description="where rates are counted: `memory://`, or for several processes a Redis, "
            "`redis://host:port/database`, `rediss://…` or `unix:///path`"
        ),
    ] = "memory://"
    rate_limit_processes: Annotated[
        int,
        Meta(ge=1, le=10_000, description="processes that share the Redis, as long as it has not told the number"),
    ] = 1
    metadata_nodes: Annotated[
        str,
        Meta(
            description="all metadata nodes, separated by commas, such as "
            "`m1=http://10.0.0.1:9401,m2=http://10.0.0.2:9401`; after an address `;zone=NAME`, `;weight=2`"
        ),
    ] = ""
    metadata_nodes_version: Annotated[
        int,
        Meta(ge=1, description="to be raised with each change of `metadata_nodes`: the list with the highest holds"),
    ] = 1
    metadata_node: Annotated[
        str | None, Meta(description="which of `metadata_nodes` this process is; it listens on that port")
    ] = None
    metadata_full_copy: Annotated[
        bool, Meta(description="whether every metadata node keeps all queues in memory, for small installations")
    ] = False
    metadata_hints: Annotated[
        str | None,
        Meta(
            description="a Redis by which metadata nodes tell of changed queues at once, written as in "
            "`rate_limit_storage`; without it caches learn of them later"
        ),
    ] = None
    cluster: Annotated[
        str,
        Meta(
            pattern="^[a-z][a-z0-9-]{0,31}$",
            description="name of the backend cluster that this process belongs to: small letters, digits and -",
        ),
    ] = "local"
    cassandra: Annotated[
        str,
        Meta(
            description="Cassandra nodes to begin with, separated by commas: what the data folder would hold is kept "
            "there"
        ),
    ] = ""
    cassandra_port: Annotated[int, Meta(ge=1, le=65535, description="port of every Cassandra node")] = 9042
    cassandra_keyspace: Annotated[str, Meta(description="keyspace of the metadata; made if it is missing")] = "holdfast"
    cassandra_cluster_keyspace: Annotated[
        str,
        Meta(
            description="keyspace of the backend cluster's entries and journal, made if it is missing; without it "
            "`cassandra_keyspace`, `_` and the cluster's name"
        ),
    ] = ""
    cassandra_replication: Annotated[
        str, Meta(description="replicas in each data centre, for a keyspace that has to be made")
    ] = "datacenter1=3"
    cassandra_scope: Annotated[
        str,
        Meta(description="data centre whose quorum decides, fixed when the tables are made; without it that of all"),
    ] = ""
    cassandra_datacenter: Annotated[
        str, Meta(description="data centre whose nodes are asked; without it `cassandra_scope`, or any")
    ] = ""
    cassandra_user: Annotated[str, Meta(description="user of Cassandra")] = ""
    cassandra_password: Annotated[str, Meta(description="password of `cassandra_user`")] = ""
    cassandra_tls_ca: Annotated[
        Path | None,
        Meta(
            description="certificates (PEM) that Cassandra's are checked with: with it connections to Cassandra are "
            "encrypted; the certificate of each node has to name its IP address"
        ),
    ] = None
    cassandra_tls_cert: Annotated[
        Path | None, Meta(description="certificate chain (PEM) that Cassandra is shown, if it asks for one")
    ] = None
    cassandra_tls_key: Annotated[Path | None, Meta(description="private key (PEM) of `cassandra_tls_cert`")] = None
    cassandra_strict: Annotated[
        bool, Meta(description="whether a Cassandra is refused that may lose what it has acknowledged")
    ] = False
    schema_migration: Annotated[
        Literal["start", "wait"],
        Meta(
            description="what a process does that finds an older schema in Cassandra, or none: `start`, it brings it "
            "to its version; `wait`, it waits until `holdfast schema migrate` has"
        ),
    ] = "start"
    backend_node: Annotated[
        Annotated[str, Meta(pattern=r"^[A-Za-z0-9._-]{1,64}$")] | None,
        Meta(description="name of a backend among those of its cluster; it keeps the name when it starts again"),
    ] = None
    listen: Annotated[
        str, Meta(description="where a backend listens for frontends and other nodes: `host:port` or `unix:/path`")
    ] = ""
    advertise: Annotated[
        str,
        Meta(description="`host:port` by which others reach a backend, where that is not what it listens on"),
    ] = ""
    health_listen: Annotated[
        str,
        Meta(
            description="`host:port` where the process answers health checks (`GET /health/live`, `/health/ready`) and "
            "Prometheus (`GET /metrics`), in plain HTTP; without it nowhere",
        ),
    ] = ""
    otlp_endpoint: Annotated[
        str,
        Meta(
            description="URL of an OpenTelemetry collector that takes OTLP over HTTP, such as `http://127.0.0.1:4318`: "
            "metrics are sent there; without it nowhere"
        ),
    ] = ""
    otlp_metrics_seconds: Annotated[
        int, Meta(ge=1, le=3600, description="how often metrics are sent to `otlp_endpoint`")
    ] = 60
    partition_rate: Annotated[
        int,
        Meta(
            ge=0,
            description="messages a second, sent and received together, that a partition of a standard queue bears; "
            "the manager splits queues that have more; 1000 at least, or 0: only an operator splits queues",
        ),
    ] = 5000
    cluster_tls_ca: Annotated[
        Path | None,
        Meta(
            description="authority (PEM) that has signed the certificates of all processes of the cluster: with it "
            "they speak TLS with each other, and each has to show such a certificate"
        ),
    ] = None
    cluster_tls_cert: Annotated[
        Path | None, Meta(description="certificate (PEM) that this process shows to the others of the cluster")
    ] = None
    cluster_tls_key: Annotated[Path | None, Meta(description="private key (PEM) of `cluster_tls_cert`")] = None
    cluster_secret: Annotated[
        str | None,
        Meta(
            description="what the processes of a cluster know each other by: 16 characters or more that nobody guesses"
        ),
    ] = None
    cluster_secret_file: Annotated[
        Path | None, Meta(description="file that holds the `cluster_secret`, in place of it")
    ] = None
    segment_bytes: Annotated[
        int, Meta(ge=1 << 21, le=1 << 27, description="size of a segment of the journal, preallocated on disk")
    ] = 1 << 25
    memory_limit: Annotated[
        int,
        Meta(
            ge=0,
            description="bytes of memory for what is kept of messages beside their bodies, some 40 for each message: "
            "beyond, no more messages are taken; 0: no limit",
        ),
    ] = 0
    alarms: Annotated[
        Literal["on", "off"],
        Meta(description="`off`: tenants cannot set alarms on their queues, and those that there are do not ring"),
    ] = "on"
    alarm_seconds: Annotated[
        float, Meta(ge=1, le=60, description="how often alarms on queues are looked at, in seconds")
    ] = 60
    webhook_networks: Annotated[
        str,
        Meta(
            description="addresses and networks, separated by commas, in which webhooks of tenants' alarms may be "
            "though they are not public, with or without TLS; all others are called at public addresses only, by https"
        ),
    ] = ""
    availability_objective: Annotated[
        float,
        Meta(ge=0, lt=100, description="percent: what `holdfast availability` holds a tenant's month against"),
    ] = 99.9
    trusted_proxies: Annotated[
        str,
        Meta(
            description="addresses and networks, separated by commas, of proxies whose word is taken on the client's "
            "address and on HTTPS; of nobody else is it taken"
        ),
    ] = ""
    forwarded_header: Annotated[
        Literal["x-forwarded-for", "forwarded"],
        Meta(description="what these proxies write: `x-forwarded-for` with `x-forwarded-proto`, or `forwarded`"),
    ] = "x-forwarded-for"
    connections_limit: Annotated[
        int, Meta(ge=1, le=1_000_000, description="most connections at once; more are answered 503")
    ] = 10_000
    connections_per_client_limit: Annotated[
        Annotated[int, Meta(ge=1)] | None,
        Meta(
            description="most connections at once from one address (of IPv6: one /64 network) that is no trusted "
            "proxy; without it no limit",
        ),
    ] = None
    request_read_seconds: Annotated[
        float, Meta(gt=0, le=3600, description="a request has to arrive whole within this time")
    ] = 30
    idle_seconds: Annotated[
        float, Meta(gt=0, le=86_400, description="a connection without a request is closed after this time")
    ] = 300
    drain_seconds: Annotated[
        float, Meta(ge=0, le=3600, description="at the end, calls under way get at most this time")
    ] = 30
    queues: Annotated[
        tuple[DeclaredQueue, ...],
        Meta(description="queues to create, or to bring to these attributes and tags, at each start (file only)"),
    ] = ()

    def __repr__(self) -> str:
        """Representation without the secrets."""
        return "Settings(...)"

    def oidc(self) -> OidcSettings | None:
        """Return the settings of the trusted issuer, if there is one.  Raises ``ValueError``."""
        if self.oidc_issuer is None or self.oidc_audience is None:
            return None
        from auth.tokens.oidc import OidcSettings  # imported on demand: it loads an HTTP client

        return OidcSettings(
            self.oidc_issuer,
            self.oidc_audience,
            self.oidc_jwks_url,
            self.oidc_account_claim,
            self.oidc_role_claim,
            self.oidc_scopes_claim,
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
    def lake(self) -> str:
        return self.usage_lake or os.fspath(self.data / "lake")

    @property
    def journal_folder(self) -> Path:
        return self.data / "journal"


CLUSTER_TLS = ("cluster_tls_ca", "cluster_tls_cert", "cluster_tls_key")
_SECRET = ("root_secret_access_key", "master_key", "cluster_secret", "metadata_hints", "cassandra_password")
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


def _from_environment(environment: Mapping[str, str]) -> tuple[dict[str, Any], Path | None]:
    values: dict[str, Any] = {}
    for variable, value in environment.items():
        if not variable.startswith(PREFIX) or variable == CONFIG_VARIABLE or variable in CLIENT_VARIABLES:
            continue
        name = variable.removeprefix(PREFIX).lower()
        if name not in _FIELDS or name == "queues" or variable != PREFIX + name.upper():
            raise SettingsError(f"{variable} in the environment is no setting of Holdfast")
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
        raise SettingsError(f"the settings file {path} is no TOML: {error}") from error
    unknown = sorted(content.keys() - _FIELDS.keys())
    if unknown:
        raise SettingsError(f"unknown in the settings file {path}: {', '.join(unknown)}")
    return {name: _convert(name, value, f"{name} in {path}", strict=True) for name, value in content.items()}


_WANTED = {
    "Expected `int`": "it is a whole number",
    "Expected `int | null`": "it is a whole number",
    "Expected `float`": "it is a number",
    "Expected `bool`": "it is true or false",
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
    """Check rules that concern several settings."""
    try:
        check_account(settings.account)
    except ValueError as error:
        raise SettingsError(f"account: {error}") from None
    for setting, check in (("default_limits", parse_limits), ("rate_limit_storage", check_url)):
        try:
            check(getattr(settings, setting))
        except ValueError as error:
            raise SettingsError(f"{setting}: {error}") from None
    if settings.external_url is not None and not re.fullmatch(r"https?://[^/?#\s]+", settings.external_url):
        raise SettingsError(f"external_url has to be like https://queue.example.com, not {settings.external_url!r}")
    if settings.trace_endpoint and not re.fullmatch(r"https?://[^/?#\s@]+(/[^?#\s]*)?", settings.trace_endpoint):
        raise SettingsError(
            "trace_endpoint has to be like http://collector:4318, without a user, a password or a query"
        )
    if 0 < settings.partition_rate < 1000:
        raise SettingsError(f"partition_rate has to be 1000 or more, or 0 for none, not {settings.partition_rate}")
    try:
        parse_members(settings.metadata_nodes)
    except ViewInvalid as error:
        raise SettingsError(f"metadata_nodes: {error}") from None
    if settings.metadata_hints is not None:
        try:
            check_redis(settings.metadata_hints)
        except ValueError as error:
            raise SettingsError(f"metadata_hints: {error}") from None
    if settings.cluster_secret is not None:
        if settings.cluster_secret_file is not None:
            raise SettingsError("cluster_secret and cluster_secret_file cannot both be given")
        _check_cluster_secret(settings.cluster_secret.encode(), "cluster_secret")
    for setting in ("trusted_proxies", "webhook_networks"):
        try:
            parse_networks(getattr(settings, setting))
        except ValueError as error:
            raise SettingsError(f"{setting}: {error}") from None
    for setting in ("listen", "advertise"):
        text = getattr(settings, setting)
        try:
            Address.parse(text) if text else None
        except ValueError as error:
            raise SettingsError(f"{setting}: {error}") from None
    if settings.health_listen:
        try:
            path = Address.parse(settings.health_listen).path
        except ValueError as error:
            raise SettingsError(f"health_listen: {error}") from None
        if path:
            raise SettingsError(f"health_listen has to be host:port, not {settings.health_listen!r}")
    if settings.otlp_endpoint and not re.fullmatch(r"https?://[^/?#@\s]+/?", settings.otlp_endpoint):
        raise SettingsError(f"otlp_endpoint has to be like http://127.0.0.1:4318, not {settings.otlp_endpoint!r}")
    given = [name for name in CLUSTER_TLS if getattr(settings, name) is not None]
    if given and len(given) < len(CLUSTER_TLS):
        raise SettingsError(f"{', '.join(CLUSTER_TLS)} can only be given together, and here is only {', '.join(given)}")
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
    try:
        settings.oidc()
    except ValueError as error:
        raise SettingsError(f"oidc_issuer: {error}") from None
    if settings.cassandra_tls_cert is not None and settings.cassandra_tls_ca is None:
        raise SettingsError("cassandra_tls_cert needs cassandra_tls_ca: without it connections are not encrypted")
    if settings.master_key is not None:
        try:
            keys_of_setting(settings.master_key)
        except MasterKeysUnusable as error:
            raise SettingsError(str(error)) from None
    names = [queue.name for queue in settings.queues]
    for name in names:
        if names.count(name) > 1:
            raise SettingsError(f"queue {name!r} is declared twice")


def is_distributed(settings: Settings) -> bool:
    """Return whether data are stored elsewhere than in the data folder."""
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
    _check_cluster_secret(secret, f"the secret in {file}")
    return secret


def _check_cluster_secret(secret: bytes, what: str) -> None:
    if len(secret) < SECRET_BYTES_LEAST:
        raise SettingsError(f"{what} has {len(secret)} bytes; it takes at least {SECRET_BYTES_LEAST}")


# --- what is told about them -------------------------------------------------------------------------


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
    texts = [meta.description for meta in type_.__metadata__ if meta.description]
    assert len(texts) == 1, "each setting has one description"
    return str(texts[0])


def table() -> str:
    """Return the settings as the Markdown table of ``docs/operations.md``."""
    rows = ["| setting (file) | environment | default | meaning |", "|---|---|---|---|"]
    for setting in describe():
        variable = "" if setting.name == "queues" else f"`{setting.variable}`"
        default = f"`{setting.default}`" if setting.default else ""
        rows.append(f"| `{setting.name}` | {variable} | {default} | {setting.description} |")
    return "\n".join(rows) + "\n"


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")
