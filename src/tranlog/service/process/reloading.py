"""The configuration file of a running process, read again: what of it changes the plan, and what waits for a restart.

Owns the comparison alone; the file's form is `config`'s, and how a running pipeline takes another plan is
`operation`'s. The hard idea: an operator who has edited a file must not believe in what did not happen. So
the answer names every key that differs from the file as the process has read it and takes effect only when it is
started anew; and what the command line said at the start still outranks the file.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator, Mapping
from typing import Any, Final

from tranlog.errors import ConfigError
from tranlog.pipeline.rules.channels import PlanOptions
from tranlog.service.config.config import Config, load, reading
from tranlog.service.process.operating import ReadAgain

PLAN_KEYS: Final = frozenset(
    {"pipeline.channels", "shards.list", *(f"shards.{one.name}" for one in dataclasses.fields(PlanOptions))}
)
"""The keys that a running process takes up."""


class ConfigFile:
    """The file by which a process was started. `channels`: what the command line said instead of it, None: nothing.

    Threads: any number.
    """

    def __init__(self, config: Config, *, environ: Mapping[str, str], channels: int | None = None) -> None:
        self._file = os.path.abspath(config.file)  # who asks may be elsewhere
        self._environ = environ
        self._channels = channels
        self._values = dict(_flat(reading(self._file).in_file))

    def read_again(self) -> ReadAgain:
        """Read the file as it is now. Raises ConfigError, naming file, key and reason; it changes nothing."""
        config = load(self._file, environ=self._environ)
        values = dict(_flat(reading(self._file).in_file))
        wanted = config.apply_options()
        at_restart = {
            key
            for key in self._values.keys() | values.keys()
            if self._values.get(key) != values.get(key) and not _of_plan(key)
        }
        if self._channels is not None:
            if wanted.channels != self._channels:
                at_restart.add(f"pipeline.channels (the command line says {self._channels})")
            wanted = dataclasses.replace(wanted, channels=self._channels)
            try:
                wanted.shard_plan().check()
            except ConfigError as exc:
                raise ConfigError(option=f"{self._file}: {exc.option}", value=exc.value, why=exc.why) from exc
        return ReadAgain(
            change=lambda options: dataclasses.replace(options, channels=wanted.channels, plan=wanted.plan),
            at_restart=tuple(sorted(at_restart)),
        )


def _of_plan(key: str) -> bool:
    section, _, name = key.partition(".")
    return f"{section}.{name.partition('.')[0]}" in PLAN_KEYS


def _flat(values: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    """Yield each key with the tables that it stands in, by dots."""
    for name, value in values.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{above}{name}.")
        else:
            yield f"{above}{name}", value
