"""The hot modules as machine code, where they were compiled; which form of each serves is decided here, at import.

Owns the list of these modules, the digest that binds compiled code to its source, and the import hook. Compiling is
`setup.py`'s, with mypyc: one source, which also runs as it is. The hard idea: machine code must never stand in for
a source that says something else. So it lies in this folder, where no import statement finds it by itself, its file
names carry the digest of the sources that it was made of, and one edited letter there brings back the plain source.

TRANLOG_PLAIN=1 in the environment chooses the plain sources, for tests and comparisons. It is read here and not in
the command line, since it has to be known before anything of the log is imported.
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Sequence
from importlib.machinery import EXTENSION_SUFFIXES, ExtensionFileLoader, ModuleSpec
from importlib.util import spec_from_file_location
from pathlib import Path
from types import ModuleType

PLAIN_VARIABLE = "TRANLOG_PLAIN"

MODULES = (
    "tranlog.clock",
    "tranlog.varint",
    "tranlog.words",
    "tranlog.lsn",
    "tranlog.table_map",
    "tranlog.row_bytes",
    "tranlog.payload",
    "tranlog.value_ends",
    "tranlog.text_rows",
    "tranlog.write_item",
    "tranlog.row_touches",
    "tranlog.log.records.format",
    "tranlog.log.records.columns",
    "tranlog.log.records.running_hash",
    "tranlog.log.rules.pending",
    "tranlog.source.sqlite.hook",
    "tranlog.source.sqlite.outbox",
    "tranlog.source.sqlite.recorder",
    "tranlog.source.packer",
    "tranlog.source.postgres.copied",
    "tranlog.source.postgres.rows",
    "tranlog.source.postgres.small",
    "tranlog.target.copy_lines",
    "tranlog.pipeline.rules.write_order",
    "tranlog.queues.rules.state",
    "tranlog.queues.rules.encoding",
    "tranlog.queues.rules.runs",
    "tranlog.queues.rules.buffer",
    "tranlog.queues.files.containers",
    "tranlog.queues.files.journal",
    "tranlog.queues.files.syncing",
    "tranlog.queues.core",
    "tranlog.queues.transaction",
    "tranlog.queues.publishing",
    "tranlog.group_commit",
    "tranlog.disk",
    "tranlog.log.rules.bucket",
    "tranlog.log.rules.mappings",
    "tranlog.log.rules.index",
    "tranlog.log.rules.prefix",
    "tranlog.log.files.ownership",
    "tranlog.log.files.positions",
    "tranlog.log.files.recent",
    "tranlog.log.files.segments",
    "tranlog.log.reading.gate",
    "tranlog.log.writing.journal",
    "tranlog.log.writing.publishing",
    "tranlog.log.writing.steps",
    "tranlog.log.writing.log_end",
    "tranlog.log.writing.appending",
    "tranlog.log.writing.committing",
    "tranlog.log.writing.index_flush",
    "tranlog.log.writing.rotation",
)
"""What is compiled: the clock, the payload's bytes and their parts, the records' bytes, walking blocks of records and
rows, write sets and the assignment by them, the running hash, appending and committing, the sparse index, segments, the
disk, packing transactions, the rows of a SQLite writer, those that a server sends as text, those that one takes by
COPY, those of a PostgreSQL's stream and its small transactions, what a message store holds, a publish, an
acknowledgement and a transaction there, group commit."""
SOURCES = (
    "clock.py",
    "varint.py",
    "words.py",
    "lsn.py",
    "table_map.py",
    "row_bytes.py",
    "payload.py",
    "value_ends.py",
    "text_rows.py",
    "write_item.py",
    "row_touches.py",
    "log/records/format.py",
    "log/records/columns.py",
    "log/records/running_hash.py",
    "log/rules/pending.py",
    "source/sqlite/hook.py",
    "source/sqlite/outbox.py",
    "source/sqlite/recorder.py",
    "source/packer.py",
    "source/postgres/copied.py",
    "source/postgres/rows.py",
    "source/postgres/small.py",
    "target/copy_lines.py",
    "pipeline/rules/write_order.py",
    "queues/rules/state.py",
    "queues/rules/encoding.py",
    "queues/rules/runs.py",
    "queues/rules/buffer.py",
    "queues/files/containers.py",
    "queues/files/journal.py",
    "queues/files/syncing.py",
    "queues/core.py",
    "queues/transaction.py",
    "queues/publishing.py",
    "group_commit.py",
    "disk.py",
    "log/files/ownership.py",
    "log/files/positions.py",
    "log/files/recent.py",
    "log/files/segments.py",
    "log/reading/gate.py",
    "log/rules/bucket.py",
    "log/rules/mappings.py",
    "log/rules/index.py",
    "log/rules/prefix.py",
    "log/writing/journal.py",
    "log/writing/publishing.py",
    "log/writing/steps.py",
    "log/writing/log_end.py",
    "log/writing/appending.py",
    "log/writing/committing.py",
    "log/writing/index_flush.py",
    "log/writing/rotation.py",
    # their values: compiled code knows the types of the fields
    "change.py",
    "checksum.py",
    "gaps.py",
    "ids.py",
    "log/options.py",
    "log/records/record.py",
    "log/rules/index_values.py",
    "queues/rules/records.py",
    "shard.py",
    "types.py",
    "write_set.py",
)
"""What the digest covers, below the package's folder."""

_HERE = Path(__file__).parent


def digest() -> str:
    """Return what the names of compiled files carry: 16 hex digits of the sources that they stand for."""
    found = hashlib.blake2b(digest_size=8)
    for name in SOURCES:
        raw = (_HERE.parent / name).read_bytes()
        found.update(b"%d " % len(raw))
        found.update(raw)
    return found.hexdigest()


def library_stem(of: str) -> str:
    """Return the name, without its suffix, of the library that holds the code of all modules."""
    return f"codec_{of}__mypyc"


def module_stem(module: str, of: str) -> str:
    """Return the name, without its suffix, of the file that stands for one module."""
    return f"{module.replace('.', '_')}_{of}"


def _find() -> tuple[dict[str, str], str | None]:
    """Return the file of each module, or none and the reason."""
    if os.environ.get(PLAIN_VARIABLE, "") not in ("", "0"):
        return {}, f"{PLAIN_VARIABLE} is set"
    there = set(os.listdir(_HERE))
    if not any("__mypyc." in name for name in there):
        return {}, "nothing was compiled when tranlog was installed"
    try:
        of = digest()
    except OSError as exc:
        return {}, f"the sources cannot be read: {exc}"
    suffix = EXTENSION_SUFFIXES[0]
    files = {module: module_stem(module, of) + suffix for module in MODULES}
    if library_stem(of) + suffix not in there or not there.issuperset(files.values()):
        return {}, "what was compiled is of other sources or for another Python; install again"
    return {module: str(_HERE / name) for module, name in files.items()}, None


_files, why_plain = _find()
"""The reason why the plain sources serve; None where the compiled ones do."""


class _Finder:
    """Finds the compiled form of a module in front of what finds it in the path."""

    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> ModuleSpec | None:
        """Return where a module's compiled form is; None for every other module."""
        file = _files.get(name)
        return None if file is None else spec_from_file_location(name, file, loader=ExtensionFileLoader(name, file))


if _files:
    # After the hooks that were there before us, which change what is imported.
    finders = [getattr(finder, "__name__", "") for finder in sys.meta_path]
    sys.meta_path.insert(finders.index("PathFinder") if "PathFinder" in finders else 0, _Finder)


def form() -> str:
    """Return `compiled`, or `plain` with the reason in brackets."""
    return "compiled" if why_plain is None else f"plain ({why_plain})"
