"""`tranlog doctor`: what is wrong with a configuration's source, log, target and machine, and what fixes it.

Owns the command, its order and its print; what is looked at is `source.kinds` and `pipeline.upkeep.checks`. The hard
idea: it is asked when something does not work, so it waits for no one: source and target are asked at the same time,
with short timeouts, and what one of them does not answer is left out of the rest.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any, Final, NamedTuple

import msgspec
import typer

from tranlog.capture.holder import known_holder
from tranlog.change import TableMap
from tranlog.clock import SystemClock
from tranlog.codecs.opening import open_readable
from tranlog.errors import ConfigError, LogError, SourceClaimedError, TranlogError
from tranlog.findings import CheckResult, Severity, fine, names_of, refused, tried, warning
from tranlog.pipeline.upkeep.checks import examine_log, examine_spark, examine_target
from tranlog.service.commands.orders import config_of
from tranlog.service.config.config import Config
from tranlog.service.frame.command import AsJson, print_json
from tranlog.service.frame.exits import ExitCode
from tranlog.service.process.apart import check_apart
from tranlog.source.kinds import CapturedUpTo, SourceOptions, source_kind

CONNECT_S: Final = 1.5
"""How long a server may take to answer."""


class PartOfService(NamedTuple):
    """What was found of one part of a service."""

    name: str
    findings: list[CheckResult]


def doctor(ctx: typer.Context, as_json: AsJson = False) -> int:
    """Check source, log, target, Java, disk, clock, rights and retention without changing anything.

    Takes about two seconds, without Spark, also while a capture and a pipeline run. For each problem it prints the
    statement or the command that fixes it. Exit code 0 if nothing is wrong, warnings or not, else 1.

    \b
    Example:
      tranlog doctor
      tranlog doctor --json
    """
    parts = examine(config_of(ctx))
    counts = {
        severity: sum(one.severity is severity for part in parts for one in part.findings) for severity in Severity
    }
    if as_json:
        found = [{"part": part.name, **msgspec.to_builtins(one)} for part in parts for one in part.findings]
        print_json({"wrong": counts[Severity.WRONG], "warnings": counts[Severity.WARNING], "findings": found})
    else:
        for line in lines(parts):
            print(line)
        print(f"{counts[Severity.WRONG]} wrong, {counts[Severity.WARNING]} warnings, {counts[Severity.FINE]} fine")
    return ExitCode.CHECK_FAILED if counts[Severity.WRONG] else ExitCode.DONE


def lines(parts: Iterable[PartOfService]) -> Iterator[str]:
    """Yield the form for people."""
    for part in parts:
        for one in part.findings:
            shown = "WRONG" if one.severity is Severity.WRONG else one.severity.value
            yield f"{shown:<8}{part.name:<8}{one.subject}: {one.text}"
            if one.remedy:
                yield f"{'':16}-> {one.remedy}"


def examine(config: Config) -> list[PartOfService]:
    """Look at all parts of a configuration."""
    clock = SystemClock()
    with ThreadPoolExecutor(max_workers=1) as pool:
        spark = pool.submit(list, examine_spark())
        written = None if config.source is None else config.log.segment_bytes
        log = list(examine_log(config.log_dir, segment_bytes=written))
        parts = [PartOfService("machine", []), PartOfService("log", log)]
        source = None if config.source is None else _hurried(config.source)
        listed = None
        if source is not None:
            findings = list(source_kind(source.kind).examine(source, clock, _captured(config.log_dir)))
            if len(findings) > 1:  # it can be reached; two that look at once would leave -wal and -shm beside a SQLite
                listed, told = _tables(source)
                if told.subject not in [one.subject for one in findings]:
                    findings.append(told)
                findings.extend(_claim(source, config.log_dir))
            parts.insert(1, PartOfService("source", findings))
        if config.target is not None:
            options = config.apply_options(_hurried(config.target))
            kind_name = "" if source is None else source.kind
            apart = tried("connection", lambda: _apart(config))
            looked = examine_target(options, clock, listed, source_kind=kind_name)
            parts.append(PartOfService("target", [apart] if apart.severity is Severity.WRONG else list(looked)))
        parts[0].findings.extend(spark.result())
    return parts


def _claim(source: SourceOptions, directory: str) -> Iterator[CheckResult]:
    """Yield whose a source is, of a kind that keeps that; wrong where a start would refuse it as another log's."""
    try:
        theirs = source_kind(source.kind).follower(source)
        if theirs is None:
            return
        ours = known_holder(directory) or f"none yet, in {directory}"
        if theirs not in ("", ours):
            raise SourceClaimedError(where=source.where, claim=f"holder {theirs}", ours=f"holder {ours}")
    except TranlogError as exc:
        yield refused("claim", exc)
    else:
        yield fine("claim", "it is for this log" if theirs else "no log follows it yet")


def _apart(config: Config) -> str:
    check_apart(config)
    return "it is not the source"


def _hurried(options: Any) -> Any:
    """Return the same options, of a source or a target, with a short timeout for connections, where they have one."""
    if not hasattr(options, "connect_timeout_s"):
        return options
    return dataclasses.replace(options, connect_timeout_s=min(CONNECT_S, options.connect_timeout_s))


def _captured(directory: str) -> CapturedUpTo | None:
    """Return the last event that the log holds; None where it tells none."""
    try:
        with open_readable(directory) as reader:
            last = reader.header(reader.range().last_seqno)
    except LogError:
        return None
    return CapturedUpTo(last.event_id, last.tstamp) if last is not None and last.event_id else None


def _tables(source: SourceOptions) -> tuple[Sequence[TableMap] | None, CheckResult]:
    """Return the source's tables, None where it does not tell them, and which of them have no key."""
    try:
        with closing(source_kind(source.kind).tables(source)) as reader:
            tables = reader.tables()
    except ConfigError:
        return None, fine("keys", "this kind of source does not tell its tables")
    except TranlogError as exc:
        return None, refused("tables", exc)
    keyless = [table.name for table in tables if not (table.primary_key or table.sequence)]
    if not keyless:
        return tables, fine("keys", f"each of {len(tables)} tables has a primary key")
    text = f"{names_of(keyless)}: without a primary key each row is found by all its values, which is slow"
    remedy = f"ALTER TABLE {keyless[0]} ADD PRIMARY KEY (...)"
    if source.kind == "sqlite":
        remedy = f"SQLite cannot add one: make a table with it, copy {keyless[0]} into it, drop that, rename"
    return tables, warning("keys", text, f"{remedy}, at the source and at the target")
