"""Runs of the simulated cluster in ``make test``.  Many more: ``python -m tests.simulator --cluster``."""

from __future__ import annotations

import pytest

from tests.simulator.cluster import simulate_cluster

SEEDS = 12
AT_ONCE = 4


@pytest.mark.parametrize("local", [False, True], ids=["quorum", "local"])
@pytest.mark.parametrize("first", range(1, SEEDS + 1, AT_ONCE))
def test_seeds(first: int, local: bool) -> None:
    for seed in range(first, first + AT_ONCE):
        try:
            simulate_cluster(seed, 8.0, local=local)
        except Exception as error:
            again = f"python -m tests.simulator --cluster --first {seed} --seeds 1 --trace"
            raise AssertionError(f"seed {seed}: {again}") from error


def test_same_seed_same_run() -> None:
    digests = {simulate_cluster(3, 5.0, local=False).digest for _ in range(2)}
    assert len(digests) == 1
