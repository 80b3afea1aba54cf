"""Cases of the frontend: requests with what is answered, as rows of a table.

::

    - name: an-account-is-given-out-once      # unique in its file
      settings: {processes: 2}                # of the frontend
      keys: {narrow: {of: admin, prefixes: [a-]}}    # more callers, or callers that are changed
      queues: {q: {}}                         # made first; $q_id is its id
      issuer: {role_claim: holdfast_role}     # the service trusts the OIDC issuer of tests/auth/outside.py
      tokens: {ci: {sub: ci@example}}         # tokens of that issuer with these claims: callers, and variables
      clusters: {local: null, east: {ago_s: 3, utilisation: 0.5}}    # backend clusters, with their latest reports
      hook: true                              # a webhook that listens on the loopback: $hook is its URL
      bounds: {frontend.rest.key_records.KEYS_MAX: 2}    # constants of modules that have another value
      each: [{seconds: 5}, {seconds: 6}]      # the case once for each row, with these variables
      steps:
        - POST /tenants: {name: x}            # a request below /v1 with its JSON body
          by: admin                           # the caller; default: operator
          status: 201                         # default: 200
          expect: {name: x}                   # matchers: tests/behaviour/README.md
          save: {account: account}            # variables from the answer
        - DELETE /tenants/$account:
          by: user
          refused: 403 AccessDenied           # an error with this status and code
          detail: operator                    # a pattern that its text matches
        - advance: 61                         # seconds
        - ListQueues: {}                      # a call of SQS; `status`, `refused` and `by` as above
          protocol: query                     # default: json
          times: 3                            # made so often, each time with this answer
        - STS AssumeRole: {RoleArn: $role}    # a call of STS, answered in XML: its elements by their names
          caller: session                     # keeps a key or session that was made, as a caller
        - fails: StorageFull                  # what each call of the backend raises from now on; null: nothing;
                                              # {StorageFull: It is full.} has this text
        - keys: {liar: {of: root, claims: x}} # from now on, as those of the case
        - lake: {NotFound: it is not closed}  # the error that the lake answers with from now on
        - without: lake                       # a service that the frontend lacks from now on
        - manager: {start: s, pins: [[$q_id, 2]]}    # the entry of the out-cluster manager that is stored now
        - managed: {pins: []}                 # the stored entry of the out-cluster manager
        - registered: [{name: local}]         # the stored backend clusters
        - stored: [{state: VISIBLE}]            # all stored messages, as the backend knows them;
                                              # $stored_bytes is then the account's sum
        - audited: [{action: tenant.create}]  # the audit log so far; $last_made is the id of what was made last
        - asked: [{type: usage}]              # the questions to the lake so far
        - hook: [500]                         # the statuses of the webhook's next answers; then 204
        - posted: [{type: alarm.test}]        # the calls of the webhook so far; `signed_by` has the secret
        - counted: {ListQueues: {calls: 1}}   # what was metered since the last such step
        - logged: [{$re: no such queue}]      # lines of the log since the last such step, with their tracebacks
        - hidden: [$secret]                   # texts that neither the log nor the audit log has
        - unstored: [$secret]                 # texts that the files of the metadata do not have

``type`` is the content type of a body that is a text; ``headers`` are more headers of a request, ``answered`` those of
its answer, and ``$request_id`` is the id of the last one; ``service`` is the one that a signature is made for.  The
protocols of SQS are ``json``, ``query``, and ``get``: Query in the URL.  The callers are :data:`CALLERS`, and
``nobody``, who does not sign.
"""

import logging
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import msgspec
import orjson

from auth.credentials import AccessKey, Tenant
from auth.tokens.oidc import OidcSettings
from backend import api
from billing.reports import reader
from frontend import sts
from frontend.settings import FrontendSettings
from metadata_service.clusters.directory import ClusterDirectory
from metadata_service.models import ClusterReport, ManagerEntry
from tests.auth.outside import AUDIENCE, ISSUER, OidcIssuer
from tests.behaviour import wire
from tests.behaviour.cases import CaseError, resolve
from tests.behaviour.match import differences
from tests.behaviour.runner import CaseFailed
from tests.frontend.hooks import Hook
from tests.frontend.lake import AnsweringReader
from tests.frontend.metered import Metered
from tests.frontend.service import HOST, KEY, FrontendAnswer, FrontendService, sign
from tests.servers.scraping import by_queue
from tests.tables import read_yaml

OTHER = "210987654321"
FOLDER = Path(__file__).with_name("cases")
CASE_KEYS = {"name", "settings", "keys", "queues", "issuer", "tokens", "clusters", "hook", "bounds", "each", "steps"}
STEP_KEYS = {"by", "type", "status", "refused", "detail", "expect", "answered", "save", "caller"}
STEP_KEYS |= {"protocol", "times", "headers", "service"}
FORM = "application/x-www-form-urlencoded; charset=utf-8"


def key(name: str, **changes: Any) -> AccessKey:
    """An additional key of the tenant."""
    id_ = f"AKIA{name.upper():0<16}"
    return msgspec.structs.replace(
        KEY, access_key_id=id_, secret=f"secret of {name}".replace(" ", "-"), name=name, **changes
    )


CALLERS = {
    "root": KEY,
    "operator": key("op", role="operator"),
    "sender": key("sender", scopes=("send",)),
    "receiver": key("receiver", scopes=("receive",)),
    "orders": key("orders", prefixes=("orders-", "bills")),
    "stranger": key("stranger", account=OTHER),
    "admin": AccessKey("AKIAADMIN00000000000", "admins-secret", OTHER, "AIDAADMIN", name="boss", role="admin"),
    "user": AccessKey("AKIAUSER000000000000", "users-secret", OTHER, "AIDAUSER", name="worker"),
}


async def add_callers(service: FrontendService) -> None:
    """Store the callers and their accounts."""
    await service.store.credentials.put_tenant(Tenant(OTHER, "others", created_s=1_700_000_000))
    for one in CALLERS.values():
        await service.store.credentials.put_access_key(one)


@dataclass
class FrontendCase:
    """One named sequence of requests."""

    name: str
    steps: list[dict[str, Any]]
    settings: FrontendSettings
    oidc: OidcSettings | None = None
    variables: dict[str, Any] = field(default_factory=dict)
    given: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Keys, queues and so on, by the case's key."""


def load() -> list[FrontendCase]:
    """Load all cases of all files; those with ``each`` once for each row."""
    cases = []
    for path in sorted(FOLDER.glob("*.yaml")):
        for entry in read_yaml(path):
            if unknown := set(entry) - CASE_KEYS:
                raise CaseError(f"{path.stem}: {entry.get('name')}: unknown {unknown}")
            given = {"external_url": f"https://{HOST}", **entry.get("settings", {})}
            settings = msgspec.convert(given, FrontendSettings)
            oidc = OidcSettings(ISSUER, AUDIENCE, **entry["issuer"]) if "issuer" in entry else None
            for number, row in enumerate(entry.get("each", [{}]), 1):
                name = f"{path.stem}.{entry['name']}" + (f"-{number}" if row else "")
                cases.append(FrontendCase(name, entry["steps"], settings, oidc, row, entry))
    return cases


class FrontendCaseRun:
    """One case: its variables and callers."""

    def __init__(
        self,
        metered: Metered,
        case: FrontendCase,
        lake: AnsweringReader,
        issuer: OidcIssuer,
        log: list[logging.LogRecord],
        listening: Hook | None,
    ) -> None:
        self._metered = metered
        self._service = service = metered.service
        self._lake = lake
        self._case = case
        self._issuer = issuer
        self._log = log
        self._hook = listening
        self._callers = dict(CALLERS)
        self._tokens: dict[str, str] = {}
        """Session tokens of callers."""
        self._variables: dict[str, Any] = {"account": KEY.account, "other": OTHER, "now": int(service.clock())}
        if listening is not None:
            self._variables["hook"] = listening.url

    async def run(self) -> None:
        """Run the case.  Raises CaseFailed."""
        await self._set_up()
        for number, step in enumerate(self._case.steps, 1):
            self._variables |= {name: one.access_key_id for name, one in self._callers.items() if not _is_bearer(one)}
            for _ in range(self._resolve(step.get("times", 1))):
                problems = await self._step(step)
                if problems:
                    raise CaseFailed(f"{self._case.name} step {number}: " + "\n".join(problems))

    async def _set_up(self) -> None:
        given = self._case.given
        await self._add_keys(given.get("keys", {}))
        for name, claims in self._resolve(given.get("tokens", {})).items():
            token = self._issuer.token(**claims).decode()
            self._variables[name], self._callers[name] = token, AccessKey("bearer", token, "", "")
        await self._add_clusters(given.get("clusters", {}))
        for name, attributes in given.get("queues", {}).items():
            await self._service.make_queue(name, **self._resolve(attributes))
            self._variables[f"{name}_id"] = (await self._service.store.queues.get_queue(KEY.account, name)).queue_id

    async def _add_keys(self, keys: dict[str, Any]) -> None:
        """Add callers like others, or change some; ``claims`` is a secret that is not the key's."""
        for caller, given in self._resolve(keys).items():
            changes: dict[str, Any] = {
                name: tuple(value) if isinstance(value, list) else value for name, value in given.items()
            }
            model, claimed = changes.pop("of", caller), changes.pop("claims", None)
            if model != caller and claimed is None:
                changes["access_key_id"] = f"AKIA{caller.upper():0<16}"
            self._callers[caller] = msgspec.structs.replace(self._callers[model], **changes)
            if claimed is None:
                await self._service.store.credentials.put_access_key(self._callers[caller])
            else:
                self._callers[caller] = msgspec.structs.replace(self._callers[caller], secret=claimed)
            if model in self._tokens:
                self._tokens[caller] = self._tokens[model]

    async def _add_clusters(self, given: dict[str, Any]) -> None:
        """Register backend clusters; ``ago_s`` is the age of a report."""
        registry, clock = self._service.store.clusters, self._service.clock
        for name, report in given.items():
            cluster = await registry.register_cluster(name)
            if report is not None:
                fields = {"cluster": cluster.number, "term": 1, "count": 1, **report}
                fields["time_ms"] = int((clock() - fields.pop("ago_s")) * 1000)
                await registry.report_cluster(msgspec.convert(fields, ClusterReport))
        if given:
            fleet = self._service.app.services.fleet = ClusterDirectory(registry, clock=clock, wall=clock)
            await fleet.refresh()

    async def _step(self, step: dict[str, Any]) -> list[str]:
        actions = [name for name in step if name[0].isupper() or name[0] == "$"]
        if actions:
            if unknown := set(step) - STEP_KEYS - set(actions):
                raise CaseError(f"{self._case.name}: unknown step keys {unknown}")
            (action,) = actions
            return await self._call(action, step)
        ((kind, operand),) = step.items()
        if kind in ("stored", "asked", "counted", "audited", "logged", "managed", "registered", "posted"):
            return differences(self._resolve(operand), await self._found(kind))
        return await self._do(kind, self._resolve(operand))

    async def _do(self, kind: str, operand: Any) -> list[str]:
        """Do a step that is neither a call nor an expectation."""
        service = self._service
        match kind:
            case "advance":
                service.clock.now += operand
            case "fails":
                service.backend.fail_with = (
                    None if operand is None else _error({**vars(api), "RuntimeError": RuntimeError}, operand)
                )
            case "keys":
                await self._add_keys(operand)
            case "lake":
                self._lake.answer = _error(vars(reader), operand)
            case "without":
                assert getattr(service.app.services, operand) is not None
                setattr(service.app.services, operand, None)
            case "manager":
                entry = await service.store.clusters.manager()
                await service.store.clusters.update_manager(
                    msgspec.convert({"version": entry.version, **operand}, ManagerEntry)
                )
            case "hidden":
                texts = [*self._lines(self._log), service.audit_file.read_text()]
                return [f"{hidden!r} is in {text!r}" for hidden in operand for text in texts if hidden in text]
            case "unstored":
                stored = b"".join(path.read_bytes() for path in service.audit_file.parent.glob("metadata.sqlite*"))
                assert KEY.account.encode() in stored
                return [f"{text!r} is stored" for text in operand if text.encode() in stored]
            case "hook":
                assert self._hook is not None
                self._hook.statuses = operand
            case _:
                raise CaseError(f"{self._case.name}: unknown step {kind}")
        return []

    async def _found(self, kind: str) -> Any:
        """Return the present state that an expectation is about."""
        service = self._service
        match kind:
            case "stored":
                self._variables["stored_bytes"] = await service.backend.call(api.AccountBytes(KEY.account))
                return [
                    {"payload": (one.payload or b"").decode("latin-1"), "state": one.state.name, "due_ms": one.due_ms}
                    for one in await service.backend.stored()
                ]
            case "asked":
                return _as_json(self._lake.asked)
            case "posted":
                assert self._hook is not None
                secrets = [value for value in self._variables.values() if str(value).startswith("hfwh_")]
                return [
                    {**call.json, "signed_by": [secret for secret in secrets if call.is_signed_by(secret)]}
                    for call in self._hook.calls
                ]
            case "counted":
                return await self._metered.lines()
            case "audited":
                lines = service.audited()
                self._variables["last_made"] = next((line["made"] for line in reversed(lines) if "made" in line), None)
                return lines
            case "managed":
                return _as_json(await service.store.clusters.manager())
            case "registered":
                return _as_json(await service.store.clusters.backend_clusters())
        logged = self._lines(self._log)
        self._log.clear()
        return logged

    @staticmethod
    def _lines(records: list[logging.LogRecord]) -> list[str]:
        formatter = logging.Formatter()
        return [formatter.format(one) for one in records if one.name != "httpx"]

    async def _call(self, name: str, step: dict[str, Any]) -> list[str]:
        action: str = self._resolve(name)
        answer = await self._request(action, self._resolve(step[name]), step)
        request_ids = (answer.headers.get(name) for name in ("x-amzn-requestid", "x-request-id"))
        self._variables["request_id"] = next(filter(None, request_ids), "")
        problems = differences(self._resolve(step.get("answered", {})), dict(answer.headers))
        if "refused" in step:
            status, code = self._resolve(step["refused"]).split()
            return problems + _refused(action, answer, int(status), code, self._resolve(step.get("detail", ".")))
        if answer.status != self._resolve(step.get("status", 200)):
            return [f"answered {answer.status}: {answer.content!r}"]
        document = self._document(action, step, answer)
        if "expect" in step:
            problems += differences(self._resolve(step["expect"]), document)
        self._variables |= {name: _dig(document, path) for name, path in step.get("save", {}).items()}
        if "caller" in step:
            self._keep_caller(step["caller"], document)
        return problems

    def _resolve(self, value: Any) -> Any:
        """Resolve a value; the variables of the case's row may use those of earlier steps."""
        row = {name: resolve(given, self._variables) for name, given in self._case.variables.items()}
        return resolve(value, self._variables | row)

    def _document(self, action: str, step: dict[str, Any], answer: FrontendAnswer) -> Any:
        """The answer's content, in whatever form it is."""
        if action.startswith("STS "):
            assert answer.text("ResponseMetadata/RequestId") == answer.headers["x-amzn-requestid"]
            return {element.tag: element.text or "" for element in answer.xml.iter()}
        if " " not in action and self._protocol(step) != "json":
            return wire.decode("query", action, wire.WireAnswer(answer.status, dict(answer.headers), answer.content))
        if answer.headers.get("content-type", "").startswith("text/plain"):
            return by_queue(answer.content.decode())
        return answer.json if answer.content[:1] in (b"{", b"[") else None

    def _protocol(self, step: dict[str, Any]) -> str:
        protocol: str = self._resolve(step.get("protocol", self._case.variables.get("protocol", "json")))
        return protocol

    def _keep_caller(self, name: str, made: dict[str, Any]) -> None:
        if "SessionToken" in made:
            self._callers[name] = AccessKey(made["AccessKeyId"], made["SecretAccessKey"], "", "")
            self._tokens[name] = made["SessionToken"]
        else:
            self._callers[name] = AccessKey(
                made.get("id", "bearer"), made.get("secret") or made["token"], made.get("account", ""), ""
            )

    async def _request(self, action: str, body: Any, step: dict[str, Any]) -> FrontendAnswer:
        service = "sqs"
        if action.startswith("STS "):
            service, method, path, headers = "sts", "POST", "/", {"Content-Type": FORM}
            content = urlencode({"Action": action[4:], "Version": sts.VERSION, **body}).encode()
        elif " " in action:
            method, path = action.split(" ", 1)
            path = f"/v1{path}".replace("+", "%2B")  # receipt handles may have one, which would be a space
            headers = {"Content-Type": self._resolve(step.get("type", "application/json"))}
            if body is None:
                content, headers = b"", {}
            elif "type" in step:
                content = body if isinstance(body, bytes) else body.encode()
            else:
                content = orjson.dumps(body)
        else:
            protocol = self._protocol(step)
            request = wire.encode("json" if protocol == "json" else "query", action, body, path="/")
            method, path, content, headers = "POST", "/", request.body, request.headers
            if protocol == "get":
                method, path, content, headers = "GET", f"/?{content.decode()}", b"", {}
        by = self._resolve(step.get("by", "operator"))
        caller = self._callers.get(by)
        if caller is not None and _is_bearer(caller):
            headers["Authorization"] = f"Bearer {caller.secret}"
        if by in self._tokens:
            headers["X-Amz-Security-Token"] = self._tokens[by]
        changed: dict[str, str | None] = {**headers, **self._resolve(step.get("headers", {}))}
        headers = {name: value for name, value in changed.items() if value is not None}
        if caller is not None and not _is_bearer(caller):
            signed_service = self._resolve(step.get("service", service))
            headers = sign(method, path, content, headers, self._service.clock(), caller, signed_service)
        return await self._service.unsigned(method, path, content, headers)


def _is_bearer(caller: AccessKey) -> bool:
    return caller.access_key_id.startswith(("hf_", "bearer"))


def _as_json(value: Any) -> Any:
    return msgspec.json.decode(msgspec.json.encode(value))


def _error(kinds: dict[str, Any], given: Any) -> Exception:
    """Make the error of a step: its name, or its name with its text."""
    ((name, text),) = given.items() if isinstance(given, dict) else [(given, f"a secret of {given}")]
    error: Exception = kinds[name](text)
    return error


def _refused(action: str, answer: FrontendAnswer, status: int, code: str, detail: str) -> list[str]:
    if answer.status < 400:
        return [f"answered {answer.status}: {answer.content!r}"]
    if answer.headers["content-type"] != "application/problem+json":
        if action.startswith("STS "):
            assert sts.NAMESPACE.encode() in answer.content
        if answer.headers["content-type"] == "text/xml":
            envelope = [answer.text("RequestId"), answer.text("Error/Type")]
            assert envelope == [answer.headers["x-amzn-requestid"], "Sender" if status < 500 else "Receiver"]
        found = [answer.status, answer.code, answer.message]
        return differences([status, {"$re": rf"(^|\.){code}$"}, {"$re": detail}], found)
    expected = {"status": status, "code": code, "request_id": answer.headers["x-request-id"], "detail": {"$re": detail}}
    return differences(expected, answer.json) + differences(status, answer.status)


def _dig(value: Any, path: str) -> Any:
    for name in path.split("."):
        value = value[int(name)] if isinstance(value, list) else value[name]
    return value
