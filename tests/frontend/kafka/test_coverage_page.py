"""The page on Kafka's protocol names the APIs and versions that are served."""

import re

from frontend.kafka.dispatch import HANDLED
from frontend.kafka.protocol.versions import BY_KEY
from tests.checks.sources import ROOT

PAGE = ROOT / "docs" / "kafka-coverage.md"
SIGN_IN = {"SaslHandshake", "SaslAuthenticate"}


def test_the_page_has_the_served_versions() -> None:
    rows = re.findall(r"^\| (\w+) \| (\d+) to (\d+) \|$", PAGE.read_text(), re.MULTILINE)
    assert rows == [(api.name, str(api.version_min), str(api.version_max)) for _, api in sorted(BY_KEY.items())]


def test_every_announced_api_is_served() -> None:
    assert {api.name for api in BY_KEY.values()} == {BY_KEY[key].name for key in HANDLED} | SIGN_IN
