"""An exposition of OpenMetrics, read by the rules of its standard."""

from __future__ import annotations

import re

SAMPLE = re.compile(
    r'([a-zA-Z_:][\w:]*)\{((?:[a-zA-Z_]\w*="(?:[^"\\\n]|\\["\\n])*",?)*)\} (-?\d+(?:\.\d+)?(?:e-?\d+)?)'
)
LABEL = re.compile(r'([a-zA-Z_]\w*)="((?:[^"\\\n]|\\["\\n])*)"')
SUFFIX = {"counter": "_total", "gauge": "", "stateset": ""}


def read_openmetrics(text: str) -> dict[str, dict[tuple[tuple[str, str], ...], float]]:
    """Read an exposition by the rules of OpenMetrics 1.0, and refuse what breaks one."""
    assert text.endswith("# EOF\n")
    families: dict[str, str] = {}
    samples: dict[str, dict[tuple[tuple[str, str], ...], float]] = {}
    current, stage = "", 0
    for line in text.removesuffix("# EOF\n").splitlines():
        assert line, "no empty lines"
        if line.startswith("# "):
            _, what, name, rest = line.split(" ", 3)
            order = ("TYPE", "UNIT", "HELP").index(what)
            if what == "TYPE":
                assert name not in families, f"{name} is told twice"
                assert rest in SUFFIX
                families[name], current = rest, name
            else:
                assert name == current and order > stage, "metadata of a family stand together, before its samples"
                assert what != "UNIT" or name.endswith(f"_{rest}")
            stage = order
            continue
        match = SAMPLE.fullmatch(line)
        assert match is not None, line
        stage = 9
        assert match[1] == current + SUFFIX[families[current]], "samples stand below their family"
        labels = tuple(LABEL.findall(match[2]))
        assert len({key for key, _ in labels}) == len(labels)
        if families[current] == "counter":
            assert float(match[3]) >= 0
        if families[current] == "stateset":
            assert current in dict(labels) and match[3] in ("0", "1")
        family = samples.setdefault(current, {})
        assert labels not in family, "a sample is told twice"
        family[labels] = float(match[3])
    return samples
