"""`thl convert`: what it shows and answers. What it does is `codecs.converting`'s."""

from __future__ import annotations

from typing import Annotated

import msgspec
import typer

from tranlog.codecs.converting import MEANINGS, Conversion, Finding, convert
from tranlog.codecs.opening import Codec
from tranlog.service.frame.command import answer, flag, option, say
from tranlog.service.frame.exits import ExitCode
from tranlog.service.frame.progress import Progress

KINDS = "\n".join(["\b", "Kinds:", *[f"  {kind}: {meaning}" for kind, meaning in MEANINGS.items()]])
HELP = f"""Copy the log in SRC, as it is now, into DST in the other codec: native or the Tungsten replicator's.

Seqno, epoch, source id, event id, shard and commit time of every transaction are kept. SRC is scanned first; what the
other codec cannot express is listed with counts and first seqnos, and refused without --lossy. An interrupted
conversion continues when it is started again, and so does a finished one when SRC has grown. DST gets a note,
converted.json, of what it was made from; a DST that is not the beginning of this log is refused. The Java serializer's
payloads are kept as they are, and their changes cannot be read. With --to native a native log is copied: every record
byte for byte, with the identity of its history; segment boundaries are new.

\b
Example:
  thl convert thl-of-the-replicator log
  thl convert --to tungsten --lossy log thl-for-java

{KINDS}
"""


def finding_lines(findings: tuple[Finding, ...]) -> list[str]:
    """Return what was found, a line each."""
    return [
        f"{one.kind}: {one.count} fragments, the first of seqno {one.first_seqno}: {one.meaning}" for one in findings
    ]


def outcome_line(done: Conversion) -> str:
    """Return what was done, in one line."""
    if done.last_seqno < 0:
        return f"the log at {done.source} holds no transaction; nothing was written"
    if done.complete_before:
        return f"{done.destination} is complete already: it ends at seqno {done.last_seqno}, like {done.source}"
    went_on = "continued: " if done.resumed else ""
    return (
        f"{went_on}converted {done.transactions} transactions, seqno {done.first_seqno} to {done.last_seqno}, into "
        f"{done.destination} ({done.to})"
    )


def convert_command(
    source: Annotated[str, typer.Argument(metavar="SRC", help="A log directory of either codec.")],
    destination: Annotated[str, typer.Argument(metavar="DST", help="A directory; its parent exists.")],
    to: Annotated[Codec | None, option("-to", None, "The codec of DST; default: the other one.")] = None,
    lossy: Annotated[bool, flag("-lossy", "Leave out what the other codec cannot express.")] = False,
    as_json: Annotated[bool, flag("-json", "One JSON object.")] = False,
) -> int:
    """Run the command; HELP is its help."""

    def show(findings: tuple[Finding, ...]) -> None:
        for line in finding_lines(findings):
            say(f"convert: {line}")

    with Progress() as progress:
        done = convert(
            source,
            destination,
            to=to,
            lossy=lossy,
            show=show,
            progress=lambda what, so_far, total: progress.update(f"convert: {what}", so_far, total, "transactions"),
        )
    answer({**msgspec.to_builtins(done), "complete_before": done.complete_before}, outcome_line(done), as_json)
    return ExitCode.DONE


def add_to(app: typer.Typer) -> None:
    """Make the command one of a program's."""
    app.command("convert", help=HELP)(convert_command)
