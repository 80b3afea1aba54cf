"""SNS at the endpoint of SQS: calls of its version of the Query protocol, or signed for it; and its certificate."""

from __future__ import annotations

from functools import partial

from auth.credentials import Tenant
from auth.errors import MissingAuthenticationToken
from auth.principal import anonymous
from frontend.http.asgi import AsgiReceive, AsgiSend, Scope
from frontend.query.parameters import Parameters
from frontend.request.pipeline import Pipeline
from frontend.request.request import Call, ClientRequest, Format, Members
from frontend.sns.actions.context import SnsAction, SnsContext
from frontend.sns.actions.topics import target_of
from frontend.sns.messages.rendering import certificate_path
from frontend.sns.operations import SNS_OPERATIONS
from frontend.sns.protocol import query
from frontend.sns.protocol.errors import NO_SUCH_VERSION, as_sns_error
from frontend.sns.topics.deliveries import PublicationSender
from frontend.sqs.protocol.errors import SqsError
from metadata_service.nodes.cached_topics import TopicClient
from telemetry.texts import shown

CERTIFICATE_PREFIX = certificate_path("").removesuffix(".pem")
"""Beginning of the paths of certificates."""
_SCOPE = b"/sns/aws4_request"
_NO_TENANT = Tenant("", "nobody")
_UNSIGNED = frozenset(name for name, action in SNS_OPERATIONS.items() if action.unsigned)


class Sns:
    """Answers the calls of SNS (:class:`frontend.sqs.endpoint.QueryService`)."""

    format = Format.SNS
    version = query.SNS_VERSION

    def __init__(self, pipeline: Pipeline, client: TopicClient, sender: PublicationSender) -> None:
        self.context = SnsContext(pipeline.context, client, sender)
        self._pipeline = pipeline
        self._authenticated = pipeline.authenticator("sns")
        self._throttle = pipeline.context.throttle

    def serves_unversioned(self, request: ClientRequest, parameters: Parameters) -> bool:
        """True for a call that is signed for SNS, or whose action needs no signature."""
        return (
            _SCOPE in request.headers.get(b"authorization", b"")
            or parameters.get("X-Amz-Credential").endswith(_SCOPE.decode())
            or parameters.get("Action") in _UNSIGNED
        )

    async def answer(self, request: ClientRequest, parameters: Parameters, body: bytes) -> bytes:
        """Answer a call in XML.

        Raises :class:`SqsError`, :class:`~auth.errors.AuthError`, and errors of the stores and the backend.
        """
        pipeline, authenticated = self._pipeline, self._authenticated
        try:
            caller = authenticated.at_once(request, body) or await authenticated(request, body)
        except MissingAuthenticationToken as refusal:
            return await self._answer_unsigned(request, parameters, refusal)
        call = request.call = pipeline.call_of(request, caller)
        name = self._action(request, parameters)
        action = SNS_OPERATIONS[name]
        allowance = self._throttle.allowance(call.tenant)
        if allowance is None:
            result = await self._act(request, call, action, parameters)
        else:
            act = partial(self._act, request, call, action, parameters)
            result = await self._throttle.within(allowance, call, action.limit, act)
        return query.write_result(name, result, request.request_id)

    def in_own_terms(self, error: SqsError) -> SqsError:
        """The error with SNS's code and status."""
        return as_sns_error(error)

    def write_error(self, error: SqsError, request_id: str) -> bytes:
        """Encode an error in SNS's format."""
        return query.write_sns_error(error, request_id)

    async def send_certificate(self, scope: Scope, receive: AsgiReceive, send: AsgiSend) -> None:
        """ASGI callable that answers with the certificate of signatures, if the path has its name."""
        signer = await self.context.signing.signer()
        found = scope["path"] == certificate_path(signer.certificate)
        body = signer.certificate_pem if found else b"There is no such certificate.\n"
        headers = [
            (b"content-type", b"application/x-pem-file" if found else b"text/plain"),
            (b"content-length", b"%d" % len(body)),
        ]
        await send({"type": "http.response.start", "status": 200 if found else 404, "headers": headers})
        await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else body})

    def _action(self, request: ClientRequest, parameters: Parameters) -> str:
        """Name of the action.  Raises NoSuchVersion, MissingAction and InvalidAction."""
        version = parameters.get("Version", query.SNS_VERSION)
        if version != query.SNS_VERSION:
            raise SqsError(NO_SUCH_VERSION, f"The requested version ( {shown(version)} ) is not valid.")
        name = query.action_of(parameters)
        request.action = f"sns:{name}"
        return name

    async def _act(
        self, request: ClientRequest, call: Call, action: SnsAction, parameters: Parameters
    ) -> Members | None:
        """Carry out an admitted action.  Raises its errors."""
        members = request.members = query.read_members(action.name, parameters)
        if action.audited:
            target = target_of(self.context, call.principal.account, members)
            result = await self._pipeline.audit.carry_out(
                call, action.name, target, lambda: action.run(self.context, call, members), service="sns"
            )
        else:
            result = await action.run(self.context, call, members)
        request.result = result
        return result

    async def _answer_unsigned(
        self, request: ClientRequest, parameters: Parameters, refusal: MissingAuthenticationToken
    ) -> bytes:
        """Carry out an action that needs no signature; refusals count towards the limits of the client's address.

        No tenant's limits apply: all unsigned callers would share them, and could exhaust them for each other.
        """
        action = SNS_OPERATIONS.get(parameters.get("Action"))
        if action is None or not action.unsigned or b"authorization" in request.headers:
            raise refusal
        name = self._action(request, parameters)
        address = request.address
        call = self._pipeline.call_of_unsigned(request, anonymous(address or "anonymous"), _NO_TENANT)
        request.call = call
        with self._pipeline.unauthenticated_callers.admit(address) as attempt:
            result = await self._act(request, call, action, parameters)
            if name != "Unsubscribe":  # its link says nothing about the caller
                attempt.let_in()
        return query.write_result(name, result, request.request_id)
