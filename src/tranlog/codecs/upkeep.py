"""Checking, mending and purging a log directory of either codec.

Owns the choice by codec alone; `upkeep` of each codec does the work.
"""

from __future__ import annotations

from typing import Any

from tranlog.codecs.opening import Codec, codec_of
from tranlog.log.rules.repair import Keep
from tranlog.log.upkeep.native_purge import purge as purge_native
from tranlog.log.upkeep.repairing import Agree, RepairOutcome
from tranlog.log.upkeep.repairing import repair as repair_native
from tranlog.log.upkeep.verify import Progress, VerifyReport
from tranlog.log.upkeep.verify import verify as verify_native
from tranlog.tungsten.upkeep.repairing import repair as repair_tungsten
from tranlog.tungsten.upkeep.verify import verify as verify_tungsten
from tranlog.tungsten.writing.directory import purge as purge_tungsten


def verify(path: str, *, progress: Progress) -> VerifyReport:
    """Read and check everything. Raises what either codec's `verify` raises."""
    return (verify_tungsten if codec_of(path) is Codec.TUNGSTEN else verify_native)(path, progress=progress)


def repair(path: str, *, keep: Keep, dry_run: bool, agree: Agree | None, progress: Progress) -> RepairOutcome:
    """Make a damaged log one that verifies clean. Raises what either codec's `repair` raises."""
    mend = repair_tungsten if codec_of(path) is Codec.TUNGSTEN else repair_native
    return mend(path, keep=keep, dry_run=dry_run, agree=agree, progress=progress)


def purge(path: str, codec: Codec, *, low: int | None, high: int | None) -> tuple[dict[str, Any], list[str]]:
    """Remove transactions from one end; return what went, for a program and in lines for people.

    Raises what either codec's `purge` raises.
    """
    if codec is Codec.NATIVE:
        outcome = purge_native(path, low=low, high=high)
        return outcome.shown(), outcome.lines()
    report = purge_tungsten(path, low=low, high=high)
    removed = [f"removed {name}" for name in report.removed]
    if report.cut is None:
        return {"removed": report.removed, "cut": None}, removed
    name, at = report.cut
    return {"removed": report.removed, "cut": {"file": name, "at": at}}, [*removed, f"cut {name} at offset {at}"]
