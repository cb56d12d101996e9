"""A pipeline as an object: source, filters, target, channels; run it, stop it, read its status.

Owns only the form: it is `apply` with its options, for programs. `run_apply` documents a run, its errors and its
reports, `view` what a status shows.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from tranlog.clock import SystemClock
from tranlog.errors import ConfigError
from tranlog.log.options import LogOptions
from tranlog.pipeline.driving.apply import ApplyResult, run_apply
from tranlog.pipeline.driving.lease import ALIVE_LOOK_S
from tranlog.pipeline.driving.report import ApplyStatus
from tranlog.pipeline.filters.filters import Filter
from tranlog.pipeline.options import ApplyOptions
from tranlog.pipeline.status.gathering import gather
from tranlog.pipeline.status.view import PipelineStatus, needed_for, pipeline_status
from tranlog.target.options import TargetKind, TargetOptions

if TYPE_CHECKING:
    from tranlog.pipeline.spark.session import SparkContext, SparkSession

_URLS: Final[dict[str, TargetKind]] = {"postgresql": "postgres", "postgres": "postgres", "mariadb": "mariadb"}
"""Kinds of targets by the scheme of a URL."""
WATCH_S: Final = ALIVE_LOOK_S
"""A driver that is well moves its row within this time."""


class Pipeline:
    """Applies a log to a target through filters, on Spark, as `tranlog apply` does.

    `source` is the log's directory. `target`: TargetOptions, or in short a `postgresql://` or `mariadb://` URL, or a
    SQLite file's path. `name`: whose positions these are at the target. `options` are further fields of ApplyOptions.

    Raises ConfigError for what cannot work. Threads: `stop` from any, `run` in one at a time.
    """

    def __init__(
        self,
        source: str | os.PathLike[str],
        filters: Sequence[Filter] = (),
        target: TargetOptions | str | os.PathLike[str] = "",
        channels: int = 4,
        *,
        name: str = "tranlog",
        **options: Any,
    ) -> None:
        unknown = sorted(set(options) - set(ApplyOptions.__dataclass_fields__))
        if unknown:
            raise ConfigError(option=unknown[0], value=None, why="ApplyOptions has no such field")
        self.options = ApplyOptions(
            pipeline=name,
            log_dir=os.fspath(source),
            target=_target(target),
            channels=channels,
            filters=tuple(filters),
            **options,
        )
        self.options.check()
        self.options.target.check()
        self._stop = threading.Event()

    def run(
        self,
        until: int | str | None = None,
        *,
        report: Callable[[ApplyStatus], None] | None = None,
        spark: SparkContext | SparkSession | None = None,
    ) -> ApplyResult:
        """Apply until a seqno, inclusive, or "now": what is committed at the start; None: until `stop`.

        `spark`: run there; it is left running, as is the program's own where the run finds it. Raises what `run_apply`
        does.
        """
        options = self.options if until is None else replace(self.options, until_seqno=until)
        more: dict[str, Any] = {} if report is None else {"report": report}
        try:
            return run_apply(options, stop=self._stop, spark=spark, **more)
        finally:
            self._stop.clear()

    def status(self, *, watch_s: float = WATCH_S, log_options: LogOptions | None = None) -> PipelineStatus:
        """Return where it stands, by log and target, whether it runs here, elsewhere, or not at all.

        `watch_s`: how long to look, in seconds, which tells whether it runs, and rates; 0: one look, which tells
        neither. `log_options`: how the log's writer was told to write it, which no log says of itself; None: `log` of
        the answer is None. What only the running process knows (its state, who waits) is NONE, -1 and empty: ask that
        process, with `RunningPipeline`. Threads: any, while it runs too.

        Raises TargetUnavailableError, and LogMissingError and the other errors of opening a log.
        """
        found = gather(
            self.options.log_dir, self.options, clock=SystemClock(), watch_s=watch_s, log_options=log_options
        )
        told = pipeline_status(needed_for(None, found))
        return told if log_options is not None else replace(told, log=None)

    def stop(self) -> None:
        """Ask the run to end, after the target transactions that are under way; before a run: that one ends at once."""
        self._stop.set()


def _target(target: TargetOptions | str | os.PathLike[str]) -> TargetOptions:
    if isinstance(target, TargetOptions):
        return target
    target = os.fspath(target)
    if not target:
        raise ConfigError(option="target", value=None, why="is missing: TargetOptions, a URL, or a SQLite file's path")
    scheme, is_url, _ = target.partition("://")
    if not is_url:
        return TargetOptions(kind="sqlite", path=target)
    if scheme not in _URLS:
        why = f"its scheme is none of {', '.join(_URLS)}; it may hold a password and is not repeated here"
        raise ConfigError(option="target", value=None, why=why)
    return TargetOptions(kind=_URLS[scheme], dsn=target)
