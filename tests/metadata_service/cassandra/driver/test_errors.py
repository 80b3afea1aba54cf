"""Descriptions of the driver's errors."""

import pytest
from cassandra import AuthenticationFailed, OperationTimedOut, ReadTimeout, Unavailable
from cassandra.cluster import NoHostAvailable
from cassandra.connection import ConnectionShutdown

from metadata_service.cassandra.driver.connection import StatementFailed
from metadata_service.cassandra.driver.errors import TEXT_MAX, describe, is_too_slow

HOST = "10.0.0.1:9042"
TOO_FEW = Unavailable(f"from {HOST}", consistency=4, required_replicas=2, alive_replicas=1)


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (OperationTimedOut({HOST: "timeout"}, HOST), "Cassandra did not answer in time"),
        (TOO_FEW, "too few nodes of Cassandra are up: 1 of the 2 replicas that are needed"),
        (
            ReadTimeout(f"from {HOST}", consistency=4, required_responses=2, received_responses=1),
            "too few nodes of Cassandra answered in time: 1 of the 2 replicas that are needed",
        ),
        (NoHostAvailable("Unable", {HOST: ConnectionShutdown(HOST)}), "no node of Cassandra is reached"),
        (
            NoHostAvailable(
                "Unable", {HOST: PermissionError(1, f"{HOST}: [SSL: CERTIFICATE_VERIFY_FAILED] for {HOST}")}
            ),
            "no node of Cassandra is reached: TLS fails, certificate verify failed",
        ),
        (
            NoHostAvailable("Unable", {HOST: AuthenticationFailed(f"{HOST}: Bad credentials")}),
            "no node of Cassandra is reached: the user name or the password is refused",
        ),
        (NoHostAvailable("Unable", {}), "no node of Cassandra is reached"),
        (NoHostAvailable("Unable", {HOST: ConnectionShutdown(HOST), "other": TOO_FEW}), describe(TOO_FEW)),
        (ConnectionShutdown(HOST), "the connection to Cassandra broke"),
        (ValueError("odd"), "Cassandra failed: ValueError: odd"),
    ],
)
def test_an_error_of_the_driver_is_a_clause_without_addresses(error: Exception, text: str) -> None:
    assert describe(error) == text
    assert str(StatementFailed(error)) == text
    assert HOST not in text


def test_unknown_names_are_bounded() -> None:
    assert len(describe(ValueError("x" * 100_000))) < TEXT_MAX + 50


@pytest.mark.parametrize(
    ("error", "is_slow"),
    [
        (OperationTimedOut({HOST: "timeout"}, HOST), True),
        (NoHostAvailable("Unable", {HOST: OperationTimedOut()}), True),
        (NoHostAvailable("Unable", {HOST: ConnectionRefusedError(111, "refused"), "other": TOO_FEW}), True),
        (NoHostAvailable("Unable", {HOST: ConnectionShutdown("Connection heartbeat timeout after 1 seconds")}), True),
        (ConnectionShutdown(HOST), True),
        (NoHostAvailable("Unable", {HOST: ConnectionShutdown(HOST)}), False),
        (NoHostAvailable("Unable", {HOST: ConnectionRefusedError(111, "refused")}), False),
        (NoHostAvailable("Unable", {HOST: AuthenticationFailed("Bad"), "other": OperationTimedOut()}), False),
        (NoHostAvailable("Unable", {}), False),
        (ValueError("odd"), False),
    ],
)
def test_a_node_that_stands_still_is_waited_for(error: Exception, is_slow: bool) -> None:
    assert is_too_slow(error) is is_slow
