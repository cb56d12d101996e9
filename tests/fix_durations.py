"""What each folder of tests took, beside the slowest ones that pytest's own `--durations` prints."""

from __future__ import annotations

from collections import Counter

import pytest


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the sum of seconds by folder at the end of a run with `--durations`; the workers' times are added up."""
    if not terminalreporter.config.option.durations:
        return
    seconds: Counter[str] = Counter()
    for report in (one for reports in terminalreporter.stats.values() for one in reports):
        if isinstance(report, pytest.TestReport):
            seconds[report.nodeid.partition("::")[0].rpartition("/")[0]] += report.duration  # type: ignore[assignment]
    terminalreporter.section("seconds by folder")
    for folder, took in [*seconds.most_common(), ("all", sum(seconds.values()))]:
        terminalreporter.write_line(f"{took:8.1f} {folder}")
