"""Metrics of a running server, parsed by Prometheus's own library."""

import urllib.request

from prometheus_client.parser import text_string_to_metric_families

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


def scrape(port: int) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=20) as answer:
        assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
        return str(answer.read().decode())


def samples(text: str) -> Samples:
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def by_queue(text: str) -> dict[str, dict[str, float]]:
    """Read the samples of a page for a tenant, by name and queue; those of a queue's partitions are added up."""
    found: dict[str, dict[str, float]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            queues, queue = found.setdefault(sample.name, {}), sample.labels.get("queue", "")
            queues[queue] = queues.get(queue, 0.0) + sample.value
    return found


def total(found: Samples, name: str, **labels: str) -> float:
    """The sum of all series of this name that have these labels."""
    wanted = labels.items()
    return sum(value for (known, given), value in found.items() if known == name and wanted <= given)


def names(found: Samples) -> set[str]:
    return {name for name, _ in found}


def values_of(found: Samples, label: str) -> set[str]:
    """All values of a label."""
    return {value for _, given in found for name, value in given if name == label}
