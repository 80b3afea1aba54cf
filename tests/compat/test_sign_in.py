"""Sign-in with real clients at a real server: boto3's STS, sessions, curl with an API key and with a token."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
from botocore.auth import SigV4QueryAuth
from botocore.awsrequest import AWSRequest
from botocore.config import Config
from botocore.credentials import Credentials
from botocore.exceptions import ClientError

from tests.auth.code_issuer import served
from tests.auth.outside import AUDIENCE, OidcIssuer
from tests.servers.server import Server, aws_client
from tests.servers.waiting import wait_until


@pytest.fixture(scope="module")
def issuer() -> Iterator[OidcIssuer]:
    with served(OidcIssuer) as issuer:
        yield issuer


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, issuer: OidcIssuer) -> Iterator[Server]:
    settings = {"OIDC_ISSUER": issuer.url, "OIDC_AUDIENCE": AUDIENCE}
    with Server(tmp_path_factory.mktemp("holdfast"), settings) as server:
        yield server


@pytest.fixture(scope="module")
def operator(server: Server) -> str:
    """Operator's API key, obtained with the root access key."""
    return str(server.rest("POST", "/v1/keys", {"name": "root", "kind": "api", "role": "operator"})["secret"])


def rest(server: Server, key: str, method: str, path: str, body: Any = None) -> Any:
    answer = httpx.request(method, f"{server.endpoint}/v1{path}", json=body, headers={"Authorization": f"Bearer {key}"})
    assert answer.is_success, answer.text
    return answer.json() if answer.content else None


def client_of(server: Server, service: str, credentials: Any = None) -> Any:
    """Make a client with these credentials of a session; default: with the root access key."""
    own = {"AccessKeyId": server.access_key_id, "SecretAccessKey": server.secret_access_key}
    given = credentials or own
    return aws_client(
        service,
        endpoint_url=server.endpoint,
        region_name=server.region,
        config=Config(retries={"total_max_attempts": 1}),
        aws_access_key_id=given["AccessKeyId"],
        aws_secret_access_key=given["SecretAccessKey"],
        aws_session_token=given.get("SessionToken"),
    )


def code_of(call: Any, **arguments: Any) -> str:
    try:
        call(**arguments)
    except ClientError as error:
        return str(error.response["Error"]["Code"])
    return "none"


def test_get_caller_identity(server: Server) -> None:
    identity = client_of(server, "sts").get_caller_identity()
    assert identity["Arn"] == f"arn:aws:iam::{server.account}:root"
    assert identity["Account"] == server.account


def test_a_session_sends_and_ends_with_its_key(server: Server, operator: str) -> None:
    role = rest(server, operator, "PUT", "/roles/sender", {"scopes": ["send"], "prefixes": ["jobs-"]})
    made = rest(server, operator, "POST", "/keys", {"name": "worker"})
    jobs = client_of(server, "sqs").create_queue(QueueName="jobs-1")["QueueUrl"]
    client_of(server, "sqs").create_queue(QueueName="other")
    base = client_of(server, "sts", {"AccessKeyId": made["id"], "SecretAccessKey": made["secret"]})
    started = base.assume_role(RoleArn=role["arn"], RoleSessionName="night", DurationSeconds=900)
    assert started["AssumedRoleUser"]["Arn"] == f"arn:aws:sts::{server.account}:assumed-role/sender/night"
    assert 880 < started["Credentials"]["Expiration"].timestamp() - time.time() <= 900
    sqs = client_of(server, "sqs", started["Credentials"])
    sent = sqs.send_message(QueueUrl=jobs, MessageBody="work")
    assert code_of(sqs.receive_message, QueueUrl=jobs) == "AccessDenied"
    assert code_of(sqs.send_message, QueueUrl=jobs.replace("jobs-1", "other"), MessageBody="b") == "AccessDenied"
    received = client_of(server, "sqs").receive_message(QueueUrl=jobs, MessageSystemAttributeNames=["SenderId"])
    (message,) = received["Messages"]
    assert message["MessageId"] == sent["MessageId"]
    assert message["Attributes"]["SenderId"].endswith(":night")
    rest(server, operator, "DELETE", f"/keys/{made['id']}")
    wait_until(
        lambda: code_of(sqs.send_message, QueueUrl=jobs, MessageBody="b") == "InvalidClientTokenId",
        "the session has ended with its key",
        2,
    )


def test_presigned_urls_of_a_session(server: Server, operator: str) -> None:
    role = rest(server, operator, "PUT", "/roles/everything", {})
    started = client_of(server, "sts").assume_role(RoleArn=role["arn"], RoleSessionName="link")
    given = started["Credentials"]
    credentials = Credentials(given["AccessKeyId"], given["SecretAccessKey"], given["SessionToken"])
    request = AWSRequest("GET", f"{server.endpoint}/?Action=ListQueues&Version=2012-11-05")
    SigV4QueryAuth(credentials, "sqs", server.region, expires=60).add_auth(request)
    assert "X-Amz-Security-Token" in request.url
    assert httpx.get(request.url).status_code == 200
    assert httpx.get(request.url.replace("X-Amz-Security-Token", "X-Amz-Security-Nothing")).status_code == 403


def test_a_web_identity_begins_a_session(server: Server, operator: str, issuer: OidcIssuer) -> None:
    trust = {"trusted_subjects": ["ci@example"]}
    role = rest(server, operator, "PUT", "/roles/deployer", trust)
    now = int(time.time())
    sts = client_of(server, "sts")
    wanted = {"RoleArn": role["arn"], "RoleSessionName": "ci"}
    token = issuer.token(iat=now, exp=now + 300).decode()
    started = sts.assume_role_with_web_identity(**wanted, WebIdentityToken=token)
    assert (started["SubjectFromWebIdentityToken"], started["Audience"]) == ("ci@example", AUDIENCE)
    assert "QueueUrl" in client_of(server, "sqs", started["Credentials"]).create_queue(QueueName="deployed")
    call = sts.assume_role_with_web_identity
    expired = issuer.token(iat=now - 600, exp=now - 300).decode()
    stranger = issuer.token(iat=now, exp=now + 300, sub="stranger").decode()
    assert code_of(call, **wanted, WebIdentityToken=expired) == "ExpiredTokenException"
    assert code_of(call, **wanted, WebIdentityToken=token[:-8]) == "InvalidIdentityToken"
    assert code_of(call, **wanted, WebIdentityToken=stranger) == "AccessDenied"


def curl(server: Server, key: str, action: str, members: Any) -> Any:
    program = shutil.which("curl")
    assert program is not None, "curl is not installed"
    done = subprocess.run(
        [
            program, "--silent", "--max-time", "20", "--noproxy", "*", server.endpoint,
            "-H", f"Authorization: Bearer {key}",
            "-H", "Content-Type: application/x-amz-json-1.0",
            "-H", f"X-Amz-Target: AmazonSQS.{action}",
            "-d", json.dumps(members),
        ],
        check=True, capture_output=True,
    )  # fmt: skip
    return json.loads(done.stdout) if done.stdout else {}


def is_refused(server: Server, key: str) -> bool:
    return "security token included in the request is invalid" in str(curl(server, key, "ListQueues", {}))


def test_curl_needs_nothing_but_an_api_key_or_a_token(server: Server, operator: str, issuer: OidcIssuer) -> None:
    made = rest(server, operator, "POST", "/keys", {"name": "shell", "kind": "api", "prefixes": ["shell-"]})
    key = made["secret"]
    bought = rest(server, key, "POST", "/token", {"scopes": ["send"], "seconds": 60})
    now = int(time.time())
    outside = issuer.token(iat=now, exp=now + 300, holdfast_account=server.account).decode()
    url = curl(server, key, "CreateQueue", {"QueueName": "shell-1"})["QueueUrl"]
    for credential, body in ((key, "one"), (bought["token"], "two"), (outside, "three")):
        assert "MessageId" in curl(server, credential, "SendMessage", {"QueueUrl": url, "MessageBody": body})
    refused = curl(server, bought["token"], "ReceiveMessage", {"QueueUrl": url})
    assert refused["__type"].endswith("AccessDenied")
    received = curl(server, key, "ReceiveMessage", {"QueueUrl": url, "MaxNumberOfMessages": 10})["Messages"]
    assert {message["Body"] for message in received} <= {"one", "two", "three"}
    for message in received:
        curl(server, key, "DeleteMessage", {"QueueUrl": url, "ReceiptHandle": message["ReceiptHandle"]})
    rest(server, operator, "DELETE", f"/keys/{made['id']}")
    for credential in (key, bought["token"]):
        wait_until(partial(is_refused, server, credential), "the key is refused", 2)
    assert key not in server.log_text()
    assert bought["token"] not in server.log_text()


def test_stored_data_reveal_no_api_key(server: Server, operator: str) -> None:
    secret = operator.rpartition("_")[2].encode()
    for file in Path(server.data).rglob("*"):
        if file.is_file():
            assert secret not in file.read_bytes(), file
