"""A log's index as an operator sees it: as it is stored, and as the process that captures has it.

Owns what is shown of it and its text; the index itself is `log.index`'s. The hard idea: the stored one is as old as the
last flush, so whoever captures is asked for its own, and for what its readers found in memory.

Source: vlsn-index ("Maintaining the VLSN range", lastSync and lastTxnEnd; the two caches in front of the log).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tranlog.disk import OsDisk
from tranlog.ids import NO_SEQNO, Seqno
from tranlog.log.files.directory import join
from tranlog.log.files.index_table import INDEX_NAME, read_index
from tranlog.log.options import ReadCounts
from tranlog.log.rules.index import SeqnoIndex


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexExtent:
    """What an index covers, and by how many places; seqnos are inclusive, NO_SEQNO for none."""

    first_seqno: Seqno
    last_seqno: Seqno
    last_sync: Seqno
    last_txn_end: Seqno
    buckets: int
    places: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WriterIndex:
    """The index of the process that captures, and from where its cursors got what they read."""

    index: IndexExtent
    reads: ReadCounts


def extent_of(index: SeqnoIndex) -> IndexExtent:
    """Return what an index covers now."""
    covered, buckets = index.range, index.mappings.buckets
    return IndexExtent(
        first_seqno=covered.first,
        last_seqno=covered.last,
        last_sync=covered.last_sync,
        last_txn_end=covered.last_txn_end,
        buckets=len(buckets),
        places=sum([len(bucket.offsets) for bucket in buckets]),
    )


def stored_extent(path: str) -> IndexExtent | None:
    """Return what the stored index of the log at `path` covers; None without one that is whole."""
    found = read_index(join(path, INDEX_NAME), OsDisk())
    return None if found is None else extent_of(found[0])


def index_lines(stored: IndexExtent | None, writer: WriterIndex | None) -> Iterator[str]:
    """Yield the lines of `tranlog log info` on the index."""
    yield f"log index stored: {_words(stored)}"
    if writer is not None:
        reads = writer.reads
        yield f"log index of the writer: {_words(writer.index)}"
        yield (
            f"log reads of the writer's process: {reads.just_written} of what was just written, "
            f"{reads.recent} of recent records, {reads.file} of files"
        )


def _words(extent: IndexExtent | None) -> str:
    if extent is None:
        return "none"
    if extent.first_seqno == NO_SEQNO:
        return "empty"
    return (
        f"seqno {extent.first_seqno} to {extent.last_seqno}, last sync {extent.last_sync}, "
        f"last transaction end {extent.last_txn_end}; {extent.places} places in {extent.buckets} buckets"
    )
