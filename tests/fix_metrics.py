"""Metrics as Prometheus reads them: both text formats, by its client's own parsers, and what its linter asks for."""

from __future__ import annotations

from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

from prometheus_client import Metric
from prometheus_client.exposition import generate_latest as generate_text
from prometheus_client.openmetrics.exposition import generate_latest
from prometheus_client.openmetrics.parser import text_string_to_metric_families
from prometheus_client.parser import text_string_to_metric_families as text_families

Samples = dict[tuple[tuple[str, str], ...], float]


def read_openmetrics(text: str) -> dict[str, Samples]:
    """Return the samples of each family that has some, by their labels; refuse what breaks a rule of OpenMetrics."""
    found: dict[str, Samples] = {}
    for family in text_string_to_metric_families(text):
        assert family.documentation.endswith("."), f"{family.name} has no help"
        assert family.type in ("counter", "gauge", "stateset")
        for unit in ("ms", "us", "millis", "kb", "mb", "minutes", "hours", "rate"):
            assert not family.name.endswith(f"_{unit}"), f"{family.name} is in no base unit"
        assert (family.name.rpartition("_")[2] in ("seconds", "bytes")) == bool(family.unit), family.name
        for sample in family.samples:
            labels = tuple(sorted(sample.labels.items()))
            assert labels not in found.setdefault(family.name, {}), "a sample is told twice"
            found[family.name][labels] = sample.value
    return found


def read_text(text: str) -> dict[str, Samples]:
    """Return the same of the older format."""
    found: dict[str, Samples] = {}
    for family in text_families(text):
        for sample in family.samples:
            found.setdefault(family.name, {})[tuple(sorted(sample.labels.items()))] = sample.value
    return found


def samples_of(families: Iterable[Metric]) -> dict[str, Samples]:
    """Return the samples of families, as they are after both formats."""
    kept: Any = SimpleNamespace(collect=lambda: kept.families, families=[*families])
    found = read_openmetrics(generate_latest(kept).decode())
    assert read_text(generate_text(kept).decode()) == found
    return found
