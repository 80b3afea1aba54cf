"""``holdfast queue`` against a real ``holdfast serve``; tests/holdfast/commands/test_admin.py has more of it."""

from tests.holdfast.transcripts import ServiceShell, Transcript, cases_of, replay
from tests.servers.server import Server


@cases_of(__file__)
def test_transcript(server: Server, transcript: Transcript) -> None:
    replay(transcript, ServiceShell(server), endpoint=server.endpoint)
