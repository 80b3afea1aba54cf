"""Searches for queues by a tag: how often the metadata is read for them, and bounds."""

import asyncio

import pytest

from frontend.rest.live import tagged_queues as module
from frontend.rest.live.queue_summaries import SummaryTooLarge
from frontend.rest.live.tagged_queues import Tag, TaggedQueues

ACCOUNT = "123456789012"


class TagStore:
    """Metadata that only has tags: every tenth of 95 queues is of the team shop."""

    def __init__(self) -> None:
        self.queues = [
            (f"q{number:02}", {"team": "mail" if number % 10 else "shop", "number": str(number)})
            for number in range(95)
        ]
        self.reads = 0
        self.reading = 0
        self.reading_max = 0

    async def list_queue_tags(self, account: str, *, after: str = "", limit: int) -> list[tuple[str, dict[str, str]]]:
        self.reads += 1
        self.reading += 1
        self.reading_max = max(self.reading_max, self.reading)
        await asyncio.sleep(0)
        self.reading -= 1
        return [one for one in self.queues if one[0] > after][:limit]


@pytest.fixture(autouse=True)
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "TAGS_AT_ONCE", 10)


async def test_queues_of_all_pages_are_found_once_for_all_callers() -> None:
    store = TagStore()
    tagged = TaggedQueues(store)
    found = await asyncio.gather(*(tagged.names(ACCOUNT, Tag("team", "shop")) for _ in range(5)))
    assert {tuple(sorted(one.names)) for one in found} == {tuple(f"q{number}0" for number in range(10))}
    assert store.reads == 10
    assert len((await tagged.names(ACCOUNT, Tag("team", None))).names) == 95
    assert (await tagged.names(ACCOUNT, Tag("team", ""))).names == frozenset()
    assert store.reads == 30


async def test_an_account_is_read_for_one_search_at_a_time() -> None:
    store = TagStore()
    tagged = TaggedQueues(store)
    await asyncio.gather(*(tagged.names(ACCOUNT, Tag("number", str(number))) for number in range(5)))
    assert store.reading_max == 1


async def test_what_was_found_is_used_for_a_while_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FRESH_SECONDS", 0)
    monkeypatch.setattr(module, "SHARE", 0)
    store = TagStore()
    tagged = TaggedQueues(store)
    await tagged.names(ACCOUNT, Tag("number", "1"))
    store.queues = [("other", {"number": "1"})]
    assert (await tagged.names(ACCOUNT, Tag("number", "1"))).names == {"other"}


async def test_searches_and_what_they_keep_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    store = TagStore()
    monkeypatch.setattr(module, "KEPT_QUEUES_MAX", 500)
    tagged = TaggedQueues(store)
    for number in range(20):
        await tagged.names(ACCOUNT, Tag("number", str(number)))
    assert len(tagged._known) == 4
    monkeypatch.setattr(module, "QUEUES_MAX", 50)
    with pytest.raises(SummaryTooLarge):
        await tagged.names(ACCOUNT, Tag("number", "x"))


@pytest.mark.parametrize(
    ("text", "tag"), [("team", ("team", None)), ("team=", ("team", "")), ("a=b=c", ("a", "b=c")), ("", ("", None))]
)
def test_tags_are_parsed(text: str, tag: tuple[str, str | None]) -> None:
    assert Tag.parse(text) == tag
