"""Commands that do not start with settings that do not fit together: they say why, and leave no file behind."""

from pathlib import Path

import pytest

from tests.holdfast.transcripts import FolderShell, Transcript, cases_of, replay

CLUSTER = "HOLDFAST_CLUSTER_SECRET=the-secret-of-this-cluster"


@cases_of(__file__)
def test_transcript(transcript: Transcript, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    replay(
        transcript,
        FolderShell(),
        cluster=CLUSTER,
        cassandra=f"{CLUSTER} HOLDFAST_CASSANDRA=127.0.0.1",
        nodes=f"{CLUSTER} HOLDFAST_METADATA_NODES=m0=http://127.0.0.1:1,m1=http://127.0.0.1:2",
    )
    assert not list(tmp_path.iterdir())
