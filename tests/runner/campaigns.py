"""One short run of each campaign, which ``make test`` keeps although it takes long."""

from typing import Final

SHORT_RUNS: Final = frozenset(
    (
        "tests/backend/journal/cassandra/test_log.py::test_nothing_that_was_acknowledged_is_lost[0]",
        "tests/compat/test_aws_cli.py::test_transcript[a-queue-is-managed]",
        "tests/faults/disks/test_sync_errors.py::test_once[commit.sync-eio]",
        "tests/faults/processes/test_kill.py::test_at_random_moments[kill]",
        "tests/frontend/kafka/test_real_service.py::test_nothing_is_lost_or_doubled_by_kill_9_and_groups_go_on",
        "tests/fuzz/test_short.py::test_the_budget_is_held",
        "tests/holdfast/backup/test_backup.py::test_acknowledged_messages_are_there_after_all_was_destroyed[3]",
        "tests/holdfast/migrate/test_files.py::test_an_import_that_is_killed_continues_and_stores_nothing_twice",
        "tests/simulator/test_cluster_world.py::test_seeds[1-local]",
        "tests/simulator/test_cluster_world.py::test_seeds[1-quorum]",
        "tests/simulator/test_simulator.py::test_seeds[1]",
        "tests/spark_analytics/test_rating.py::test_usage_is_rated_as_by_hand[2026-11]",
        "tests/system/distributed/test_distributed.py::test_dead_letters_cross_nodes_and_nothing_is_lost_with_one",
        "tests/system/test_encryption.py::test_no_file_holds_a_body_an_attribute_or_a_secret[on]",
        "tests/system/test_frontends.py::test_boto3_walks_through_all_actions_at_both",
        "tests/system/test_prometheus.py::test_every_question_of_the_dashboards_has_an_answer",
    )
)
"""Ids of tests."""
