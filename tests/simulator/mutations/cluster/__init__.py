"""Rules of the journal, each taken out for the length of a cluster's run: the simulator has to notice.

A mutation patches the real code.  Where a rule is kept by Cassandra, or by the statements that it is sent, the mutation
changes what stands in for it here (:mod:`tests.simulator.world.quorum`, :mod:`tests.simulator.checks.ledger`).  What
makes it show within few runs is said apart from it (:mod:`tests.simulator.mutations.cluster.focus`): the same trouble
with the rule in its place has to do no harm.  :data:`tests.simulator.mutations.rules.RULES` has every rule;
``docs/simulator.md`` prints them.
"""

from tests.simulator.mutations.cluster import (  # noqa: F401
    backups,
    deletions,
    levels,
    local,
    maps,
    moves,
    recovery,
    segments,
    times,
    writing,
)
from tests.simulator.mutations.cluster.registry import MUTATIONS, Mutation, run_mutated

__all__ = ["MUTATIONS", "Mutation", "run_mutated"]
