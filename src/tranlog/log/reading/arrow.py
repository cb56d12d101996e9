"""Arrow record batches out of a cursor: one row per change, or one per transaction, without an object per row.

Owns the columns and how they are cut out of the bytes at the places that `columns` notes. `row_text` has the form of
each value in `key`, `before` and `after`. pyarrow is only needed here, and only when a batch is asked for: this module
imports without it. The hard idea: what is noted is turned into columns by Arrow's own functions over whole batches, and
only what these cannot say exactly as `row_text` says it goes through Python, once per different value.

| column of a change | what it is |
|---|---|
| gtid, epoch, seqno | the transaction's identity |
| h | the running hash up to it, 16 hexadecimal digits |
| fragno, last_frag | which fragment of the transaction the change stands in |
| changeno | the number of the change in its fragment, from 0; seqno, fragno, changeno are the log's order |
| source_id, event_id, shard_id, commit_time | the transaction's |
| kind, op | `insert` I, `update` U, `delete` D, `statement`, `noop` (a transaction without changes is one such row) |
| schema, table | the table's; a statement has only a schema |
| key, before, after | JSON text; `key` is null where the table has no primary key |
| statement | its text |
| metadata | the fragment's |

| column of a transaction | what it is |
|---|---|
| gtid, epoch, seqno, h, source_id, event_id, shard_id, commit_time, metadata | as above |
| tables | those touched, as `schema.table`; null where they were too many to list |
| fragments, bytes | how many records hold its content, and the content's bytes |
| changes | how many |
| payload | its content's bytes; null where it has several fragments |

Of either, where it is asked for by name: `gtid_bytes`, the GTID's 16 bytes, whose order is that of the GTIDs, and
`gtid_base64`, the base64 of these.

Source: docs/performance.md.
"""

from __future__ import annotations

import json
import sys
from array import array
from base64 import b64encode
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

from tranlog.change import Column, Op, RowChange, Statement, TableMap
from tranlog.errors import ConfigError, LibraryMissingError, PayloadError
from tranlog.header import Record
from tranlog.ids import Seqno
from tranlog.log.records.columns import ALL, FIELDS, Block, Rows, Selection, TableRows, block_of, survey_payload
from tranlog.log.records.format import EVENT_START, TRAILER, parse_tables
from tranlog.log.records.running_hash import signed
from tranlog.payload import OP_STATEMENT, PayloadBuilder, decode
from tranlog.row_text import pairs_text, value_json
from tranlog.types import LogicalType, Tag

if TYPE_CHECKING:
    from pyarrow import Array, BinaryArray, RecordBatch, Schema

    from tranlog.log.reading.cursor import Cursor, StoredTransaction

    Texts = dict[int, tuple[str, Array]]
    """A column's JSON text by its place, with the quote that belongs around each value."""

BATCH_BYTES: Final = 4 << 20
"""A batch ends after the record with which its records' bytes reach this."""
BATCH_ROWS: Final = 16_384
"""A batch ends after the stretch of records, or the fragment, with which its rows reach this."""


class Unit(StrEnum):
    """What a row of a batch stands for."""

    CHANGE = "change"
    TRANSACTION = "transaction"


CHANGE_COLUMNS: Final = (
    *("gtid", "epoch", "seqno", "h", "fragno", "last_frag", "changeno"),
    *("source_id", "event_id", "shard_id", "commit_time"),
    *("kind", "schema", "table", "op", "key", "before", "after", "statement", "metadata"),
)
TRANSACTION_COLUMNS: Final = (
    *("gtid", "epoch", "seqno", "h", "source_id", "event_id", "shard_id", "commit_time"),
    *("tables", "fragments", "bytes", "changes", "metadata", "payload"),
)
COLUMNS: Final = {Unit.CHANGE: CHANGE_COLUMNS, Unit.TRANSACTION: TRANSACTION_COLUMNS}
"""Those of a batch for which none are named."""
KNOWN_COLUMNS: Final = {unit: (*columns, "gtid_bytes", "gtid_base64") for unit, columns in COLUMNS.items()}
_KINDS: Final = ("noop", "insert", "delete", "update", "statement")
_OPS: Final = (None, "I", "D", "U", None)
_IMAGES: Final = frozenset(("key", "before", "after"))
_OF_CHANGE: Final = frozenset(("changeno", "kind", "schema", "table", "op", "statement"))
_SEQNO: Final = 9
_FRAGNO: Final = 17
_LAST_FRAG: Final = 19
_EPOCH: Final = 20
"""Where these stand in an event record."""
_ANY_END: Final = 1 << 31
_QUOTED: Final = frozenset((Tag.DECIMAL, Tag.TEXT, Tag.ENUM, Tag.JSON))
_CONSTANTS: Final = {Tag.NULL: "null", Tag.FALSE: "false", Tag.TRUE: "true", Tag.UNCHANGED: '{"unchanged":true}'}
_SHORT: Final = 129
"""A tag, a length of one byte, and so many bytes of text."""
_ONE_COLUMN: Final = TableMap(schema="", table="", columns=(Column(name="", source_type="", logical=LogicalType.ANY),))


def _pyarrow() -> tuple[Any, Any]:
    """Return pyarrow and its functions. Raises LibraryMissingError."""
    try:
        import pyarrow
        import pyarrow.compute
    except ImportError as exc:
        raise LibraryMissingError(library="pyarrow", what="Arrow batches") from exc
    return pyarrow, pyarrow.compute


def batch_schema(columns: Sequence[str] | None = None, *, unit: Unit = Unit.CHANGE) -> Schema:
    """Return the schema of batches with these columns, all when None. Raises ConfigError, LibraryMissingError."""
    pa, _ = _pyarrow()
    known = KNOWN_COLUMNS[unit]
    label = pa.dictionary(pa.int32(), pa.string())
    types = {
        **dict.fromkeys(("epoch", "seqno", "bytes", "changes"), pa.int64()),
        **dict.fromkeys(("fragno", "fragments", "changeno"), pa.int32()),
        **dict.fromkeys(("source_id", "shard_id", "kind", "schema", "table", "op"), label),
        "last_frag": pa.bool_(),
        "commit_time": pa.timestamp("ms", tz="UTC"),
        "metadata": pa.map_(pa.string(), pa.string()),
        "tables": pa.list_(pa.string()),
        **dict.fromkeys(("payload", "gtid_bytes"), pa.binary()),
    }
    wanted = COLUMNS[unit] if columns is None else tuple(columns)
    for column in wanted:
        if column not in known:
            why = f"one row per {unit} has the columns {', '.join(known)}"
            raise ConfigError(option="columns", value=column, why=why)
    return pa.schema([pa.field(column, types.get(column, pa.string())) for column in wanted])


def _check_selection(selection: object) -> None:
    """Raise TypeError for what would select nothing, or by parts of names, and say nothing."""
    if not isinstance(selection, Selection):
        raise TypeError(f"a selection is a Selection, not {selection!r}")
    for name, given in (("shards", selection.shards), ("schemas", selection.schemas), ("tables", selection.tables)):
        names: object = given
        if isinstance(names, str):
            raise TypeError(f"{name} of a Selection are a set, not the str {names!r}")
    tables: Iterable[object] = selection.tables or ()
    for one in tables:
        if not isinstance(one, tuple) or len(one) != 2:
            raise TypeError(f"a table of a Selection is a pair of schema and table, not {one!r}")


def read_batches(
    cursor: Cursor,
    *,
    unit: Unit = Unit.CHANGE,
    columns: Sequence[str] | None = None,
    selection: Selection = ALL,
    until: Seqno | None = None,
    wait: bool = True,
    batch_rows: int = BATCH_ROWS,
) -> Iterator[RecordBatch]:
    """Yield what a cursor reads from where it stands, as `Cursor.batches`, which see."""
    unit = Unit(unit)
    _check_selection(selection)
    schema = batch_schema(columns, unit=unit)
    gather = _Changes(schema, selection) if unit is Unit.CHANGE else _Transactions(schema, selection)
    hashed = "h" in gather.columns
    verdicts: dict[bytes, bool] = {}
    while until is None or cursor.next_seqno <= until:
        block = cursor.block(until, selection, verdicts)
        if block is not None:
            if hashed:
                gather.hashes += cursor.hashes(block)
            gather.take(block)
        else:
            transaction = cursor.next(0.0)
            if transaction is None:
                if gather.rows():
                    yield gather.batch()  # what is there goes out before we wait
                if not wait:
                    return
                transaction = next(cursor)
            header = transaction.header
            if selection is ALL or selection.wants(header.shard_id, header.tables):
                h = signed(cursor.h()) if hashed else 0
                for part in gather.parts(transaction):
                    gather.hashes.append(h)
                    gather.take(part)
                    if gather.rows() >= batch_rows or gather.bytes >= BATCH_BYTES:
                        yield gather.batch()
        if gather.rows() >= batch_rows or gather.bytes >= BATCH_BYTES:
            if gather.rows():
                yield gather.batch()
            else:
                gather.clear()
    if gather.rows():
        yield gather.batch()


class _Gather:
    """Records gathered for one batch, and the columns that every unit has."""

    def __init__(self, schema: Schema, selection: Selection) -> None:
        self.pa, self.pc = _pyarrow()
        self.schema = schema
        self.columns = frozenset(schema.names)
        self.selection = selection
        self.clear()

    def clear(self) -> None:
        """Forget everything."""
        self.bytes = 0
        self.count = 0
        self.stretches: list[memoryview] = []
        self.fields: list[Array] = []
        self.pieces: dict[int, BinaryArray] = {}
        self.known_numbers: dict[tuple[int, int], array[int]] = {}
        self.hashes: list[int] = []
        """The running hash up to each record's transaction, where it is wanted."""

    def rows(self) -> int:
        """How many rows the next batch has."""
        return self.count

    def take(self, block: Block) -> None:
        """Add a block's records. Raises PayloadError."""
        offsets = block.offsets
        if offsets:
            self.fields.append(self.moved(offsets, offsets[0]))
            self.stretches.append(memoryview(block.raw)[offsets[0] : offsets[-1]])
            self.bytes += offsets[-1] - offsets[0]
            self.count += len(block)

    def moved(self, offsets: array[int], first: int) -> Array:
        """Return places in a block as places in the batch, which the block joins now; `first` is the block's first."""
        return self.pc.add(self.number(offsets, self.pa.int32()), self.pa.scalar(self.bytes - first, self.pa.int32()))

    def cut(self, offsets: list[Array]) -> BinaryArray:
        """Return the pieces of the batch's bytes between these places; the last one is empty."""
        pa = self.pa
        ends = pa.concat_arrays([*offsets, offsets[-1][-1:]])
        return pa.Array.from_buffers(pa.binary(), len(ends) - 1, [None, ends.buffers()[1], self.raw])

    def number(self, numbers: array[int], kind: Any) -> Array:
        """Return numbers as a column; they are not copied."""
        return self.pa.Array.from_buffers(kind, len(numbers), [None, self.pa.py_buffer(numbers)])

    def piece(self, which: int) -> BinaryArray:
        """Return one of the pieces that each record is cut into."""
        if which not in self.pieces:
            places = self.number(array("i", range(which, self.count * FIELDS, FIELDS)), self.pa.int32())
            self.pieces[which] = self.flat.take(places)
        return self.pieces[which]

    def numbers(self, which: int, start: int, code: str) -> array[int]:
        """Return the big-endian numbers that stand at `start` in a piece of each record."""
        if (which, start) in self.known_numbers:
            return self.known_numbers[which, start]
        found = array(code)
        cut = self.pc.binary_slice(self.piece(which), start, start + found.itemsize)
        found.frombytes(memoryview(cut.buffers()[2])[: self.count * found.itemsize])
        if sys.byteorder == "little":
            found.byteswap()
        self.known_numbers[which, start] = found
        return found

    def text(self, raw: BinaryArray) -> Array:
        """Return bytes in UTF-8 as text. Raises PayloadError."""
        try:
            return raw.cast(self.pa.string())
        except self.pa.ArrowInvalid as exc:
            last = self.numbers(0, _SEQNO, "q")[-1]
            raise PayloadError(why=f"text that is not UTF-8, here or shortly before ({exc})", seqno=last) from exc

    def label(self, indices: Array, words: Sequence[str | None]) -> Array:
        """Return the dictionary column of these words; a None among them is a null."""
        pa = self.pa
        if None in words:
            known = [word for word in words if word is not None]
            places = pa.array([None if word is None else known.index(word) for word in words], pa.int32())
            indices, words = places.take(indices), known
        return pa.DictionaryArray.from_arrays(indices, pa.array(words, pa.string()))

    def of_record(self, name: str) -> Array | None:
        """Return a column with one entry per record; None for a name that is no such column."""
        pa, pc = self.pa, self.pc
        match name:
            case "epoch":
                return self.number(self.numbers(0, _EPOCH, "q"), pa.int64())
            case "seqno":
                return self.number(self.numbers(0, _SEQNO, "q"), pa.int64())
            case "gtid":
                epochs = self.numbers(0, _EPOCH, "q")
                seqno = self.number(self.numbers(0, _SEQNO, "q"), pa.int64()).cast(pa.string())
                if epochs.count(epochs[0]) == len(epochs):
                    return pc.binary_join_element_wise(f"GTID({epochs[0]}, ", seqno, ")", "")
                epoch = self.number(epochs, pa.int64()).cast(pa.string())
                return pc.binary_join_element_wise("GTID(", epoch, ", ", seqno, ")", "")
            case "gtid_bytes" | "gtid_base64":
                raw = self._gtids()
                if name == "gtid_bytes":
                    places = pa.py_buffer(array("i", range(0, 16 * self.count + 1, 16)))
                    return pa.Array.from_buffers(pa.binary(), self.count, [None, places, pa.py_buffer(raw)])
                return pa.array([b64encode(raw[at : at + 16]).decode() for at in range(0, len(raw), 16)], pa.string())
            case "h":
                hashes = array("q", self.hashes)
                if sys.byteorder == "little":
                    hashes.byteswap()
                ends = pa.py_buffer(array("i", range(0, 16 * self.count + 1, 16)))
                digits = pa.py_buffer(hashes.tobytes().hex().encode())
                return pa.Array.from_buffers(pa.string(), self.count, [None, ends, digits])
            case "commit_time":
                return self.number(self.numbers(3, 0, "q"), pa.timestamp("ms", tz="UTC"))
            case "fragno":
                return self.number(self.numbers(0, _FRAGNO, "H"), pa.uint16()).cast(pa.int32())
            case "last_frag":
                return self.number(self.numbers(0, _LAST_FRAG, "b"), pa.int8()).cast(pa.bool_())
            case "source_id" | "shard_id":
                found = self.piece(0 if name == "source_id" else 2)
                if name == "source_id":
                    found = pc.binary_slice(found, EVENT_START.size, _ANY_END)
                found = found.dictionary_encode()
                words = self.text(pc.binary_slice(found.dictionary, 0, -1))
                return pa.DictionaryArray.from_arrays(found.indices, words)
            case "event_id":
                return self.text(pc.binary_slice(self.piece(1), 0, -1))
            case _:
                return None

    def _gtids(self) -> bytes:
        """Return 16 bytes for each record, as `Gtid.to_bytes`."""
        pairs = array("q", bytes(16 * self.count))
        pairs[::2], pairs[1::2] = self.numbers(0, _EPOCH, "q"), self.numbers(0, _SEQNO, "q")
        if sys.byteorder == "little":
            pairs.byteswap()
        return pairs.tobytes()

    def metadata(self, numbers: array[int], known: Iterable[bytes]) -> Array:
        """Return the column of metadata, given its number for each record."""
        kind = self.schema.field("metadata").type
        different = [list(pairs_text(decode(raw).metadata).items()) for raw in known]
        return self.pa.array(different, kind).take(self.number(numbers, self.pa.int32()))

    def parts(self, transaction: StoredTransaction) -> Iterator[Block]:
        """Yield a transaction that no block holds as blocks."""
        raise NotImplementedError

    def arrays(self) -> Iterator[Array]:
        """Yield the columns."""
        raise NotImplementedError

    def batch(self) -> RecordBatch:
        """Return what was gathered as a batch, and start again. Raises PayloadError."""
        self.raw = self.pa.py_buffer(b"".join(self.stretches))
        self.flat = self.cut(self.fields)
        batch = self.pa.RecordBatch.from_arrays(list(self.arrays()), schema=self.schema)
        self.clear()
        return batch


class _Transactions(_Gather):
    """One row per transaction."""

    def clear(self) -> None:
        super().clear()
        self.changes = array("q")
        self.metadata_of = array("i")
        self.known: dict[bytes, int] = {b"": 0}
        self.larger: dict[int, tuple[int, int, int]] = {}
        """Of the records that stand for several fragments: how many, how many bytes, how many changes."""

    def take(self, block: Block) -> None:
        first = self.count
        super().take(block)
        if not self.columns & {"changes", "metadata"}:
            return
        raw, known = block.raw, self.known
        for number, (start, end) in enumerate(block.payloads()):
            try:
                changes, metadata_start, metadata_end = survey_payload(raw, start, end)
            except PayloadError as exc:
                raise PayloadError(why=exc.why, seqno=block.seqno(number)) from exc
            larger = self.larger.get(first + number)
            self.changes.append(changes if larger is None else larger[2])
            self.metadata_of.append(known.setdefault(raw[metadata_start:metadata_end], len(known)))

    def parts(self, transaction: StoredTransaction) -> Iterator[Block]:
        if transaction.fragments == 1:
            (record,) = transaction.records()
            yield block_of(record)
            return
        # The content of several fragments stays in the log; the last one's metadata speaks for the whole.
        changes = size = 0
        metadata = b""
        for record in transaction.records():
            payload = record.payload
            size += len(payload)
            if self.columns & {"changes", "metadata"}:
                count, start, end = survey_payload(payload, 0, len(payload))
                changes += count
                metadata = payload[start:end]
        self.larger[self.count] = (transaction.fragments, size, changes)
        yield block_of(Record(record.header, metadata))

    def arrays(self) -> Iterator[Array]:
        pa, pc = self.pa, self.pc
        for name in self.schema.names:
            column = self.of_record(name)
            if column is None:
                match name:
                    case "changes":
                        column = self.number(self.changes, pa.int64())
                    case "metadata":
                        column = self.metadata(self.metadata_of, self.known)
                    case "tables":
                        found = pc.binary_slice(self.piece(3), 8, -4).dictionary_encode()
                        column = pa.array(map(_table_names, found.dictionary.to_pylist()), pa.list_(pa.string()))
                        column = column.take(found.indices)
                    case "fragments":
                        fragments = array("i", [1]) * self.count
                        for number, (count, _, _) in self.larger.items():
                            fragments[number] = count
                        column = self.number(fragments, pa.int32())
                    case "bytes":
                        column = pc.subtract(pc.binary_length(self.piece(4)).cast(pa.int64()), TRAILER.size)
                        column = self._but(column, {number: size for number, (_, size, _) in self.larger.items()})
                    case _:
                        column = pc.binary_slice(self.piece(4), 0, -TRAILER.size)
                        column = self._but(column, dict.fromkeys(self.larger))
            yield column

    def _but(self, column: Array, others: Mapping[int, object]) -> Array:
        """Return a column with other entries at some places."""
        if not others:
            return column
        mask = array("b", bytes(self.count))
        for number in others:
            mask[number] = 1
        chosen = self.number(mask, self.pa.int8()).cast(self.pa.bool_())
        return self.pc.replace_with_mask(column, chosen, self.pa.array(list(others.values()), column.type))


def _table_names(extension: bytes) -> list[str] | None:
    tables = parse_tables(extension)
    return None if tables is None else [f"{schema}.{table}" for schema, table in tables]


class _Changes(_Gather):
    """One row per change."""

    def __init__(self, schema: Schema, selection: Selection) -> None:
        names = frozenset(schema.names)
        images = bool(names & _IMAGES)
        detail = images or bool(names & _OF_CHANGE)
        self.walked = Rows(selection, detail=detail, images=images, metadata="metadata" in names)
        super().__init__(schema, selection)

    def clear(self) -> None:
        super().clear()
        self.walked.clear()
        self.values: list[Array] = []

    def rows(self) -> int:
        return len(self.walked)

    def take(self, block: Block) -> None:
        if block.offsets:
            walked = self.walked
            walked.walk(block, self.count)
            if walked.values:
                self.values.append(self.moved(walked.values, block.offsets[0]))
            super().take(block)

    def parts(self, transaction: StoredTransaction) -> Iterator[Block]:
        for record in transaction.records():
            yield block_of(record, transaction.header)

    def arrays(self) -> Iterator[Array]:
        pa, walked = self.pa, self.walked
        records = self.number(walked.records, pa.int32())
        one_each = len(walked) == self.count and walked.records == array("i", range(self.count))
        kinds = self.number(walked.kinds, pa.int8()).cast(pa.int32())
        images = self._images() if self.columns & _IMAGES else {}
        for name in self.schema.names:
            column = self.of_record(name)
            if name == "metadata":
                column = self.metadata(walked.metadata, walked.known_metadata)
            if column is not None:
                yield column if one_each else column.take(records)
            elif name in _IMAGES:
                yield images[name]
            else:
                match name:
                    case "kind":
                        yield self.label(kinds, _KINDS)
                    case "op":
                        yield self.label(kinds, _OPS)
                    case "changeno":
                        yield self.number(walked.changenos, pa.int32())
                    case "statement":
                        yield self._statements(lambda one: one.sql if isinstance(one.sql, str) else _shown(one.sql))
                    case _:
                        yield self._names(name)

    def _names(self, name: str) -> Array:
        """Return the column `schema` or `table`."""
        pa, pc, walked = self.pa, self.pc, self.walked
        which = 0 if name == "schema" else 1
        words: dict[str, int] = {}
        of_table = [words.setdefault(names[which], len(words)) for names in walked.names]
        places = [of_table[table.name] for table in walked.by_map.values()]
        numbers = array("i", [*places, -1])  # the last one is what a row without a table finds
        indices = self.number(walked.tables, pa.int32())
        indices = self.number(numbers, pa.int32()).take(pc.if_else(pc.less(indices, 0), len(places), indices))
        if walked.statements and which == 0:
            of_statement = pa.array(
                [words.setdefault(one.schema, len(words)) for one in walked.statements], pa.int32()
            ).take(self._statement_numbers())
            indices = pc.coalesce(of_statement, indices)
        indices = pc.if_else(pc.less(indices, 0), pa.scalar(None, pa.int32()), indices)
        return pa.DictionaryArray.from_arrays(indices, pa.array(list(words), pa.string()))

    def _statement_numbers(self) -> Array:
        pa, pc, walked = self.pa, self.pc, self.walked
        is_statement = pc.equal(self.number(walked.kinds, pa.int8()), OP_STATEMENT)
        return pc.if_else(is_statement, self.number(walked.starts, pa.int32()), pa.scalar(None, pa.int32()))

    def _statements(self, text_of: Callable[[Statement], str]) -> Array:
        pa, walked = self.pa, self.walked
        if not walked.statements:
            return pa.nulls(len(walked), pa.string())
        return pa.array([text_of(one) for one in walked.statements], pa.string()).take(self._statement_numbers())

    def _images(self) -> dict[str, Array]:
        """Return the columns `key`, `before` and `after`.

        Table by table: the texts of the first image of each of its rows, then those of the second images of updates.
        """
        pa, pc, walked = self.pa, self.pc, self.walked
        with_key, with_rows = "key" in self.columns, bool(self.columns & {"before", "after"})
        values = self.cut(self.values) if self.values else None
        kinds, starts = self.number(walked.kinds, pa.int8()), self.number(walked.starts, pa.int32())
        of_table = self.number(walked.tables, pa.int32())
        none = pa.scalar(None, pa.int32())
        places: list[Array] = []
        keys: list[Array] = []
        texts: list[Array] = []
        key_numbers: list[Array] = []
        firsts: list[Array] = []
        seconds: list[Array] = []
        keys_before = texts_before = 0
        for table in (None, *walked.by_map.values()):
            rows = pc.indices_nonzero(pc.equal(of_table, -1 if table is None else table.number))
            count = len(rows)
            if not count:
                continue
            places.append(rows)
            if table is None:  # a statement, or no change at all
                for numbers in (key_numbers, firsts, seconds):
                    numbers.append(pa.nulls(count, pa.int32()))
                continue
            assert values is not None, "the rows of a table have images"
            first = starts.take(rows)
            is_update = pc.equal(kinds.take(rows), Op.UPDATE)
            second = pc.add(first.filter(is_update), pa.scalar(len(table.values) + 1, pa.int32()))
            begin = pa.concat_arrays([first, second]) if with_rows else first
            key = table.table.primary_key
            json_of = {
                place: self._json(values.take(pc.add(begin, pa.scalar(place, pa.int32()))))
                for place in (table.values if with_rows else key)
            }
            counted = self.number(array("i", range(count)), pa.int32())
            if with_rows:
                texts.append(self._joined(table, table.values, json_of, len(begin)))
                firsts.append(pc.add(counted, pa.scalar(texts_before, pa.int32())))
                nth_update = pc.cumulative_sum(is_update.cast(pa.int32()))
                after = pc.add(nth_update, pa.scalar(texts_before + count - 1, pa.int32()))
                seconds.append(pc.if_else(is_update, after, none))
                texts_before += len(begin)
            if with_key and key:
                of_first = {place: (json_of[place][0], json_of[place][1].slice(0, count)) for place in key}
                keys.append(self._joined(table, key, of_first, count))
                key_numbers.append(pc.add(counted, pa.scalar(keys_before, pa.int32())))
                keys_before += count
            else:
                key_numbers.append(pa.nulls(count, pa.int32()))
        back = None if len(places) == 1 else pc.array_sort_indices(pa.concat_arrays(places))

        def in_order(numbers: list[Array]) -> Array:
            joined = pa.concat_arrays(numbers)
            return joined if back is None else joined.take(back)

        def chosen(pieces: list[Array], numbers: Array) -> Array:
            return (pa.concat_arrays(pieces) if pieces else pa.array([], pa.string())).take(numbers)

        found = {}
        if with_key:
            found["key"] = chosen(keys, in_order(key_numbers))
        if with_rows:
            first = in_order(firsts)
            is_insert = pc.equal(kinds, Op.INSERT)
            found["before"] = chosen(texts, pc.if_else(is_insert, none, first))
            found["after"] = chosen(texts, pc.if_else(is_insert, first, in_order(seconds)))
        return found

    def _joined(self, table: TableRows, places: Iterable[int], texts: Texts, count: int) -> Array:
        """Return JSON objects of these columns of a table, a row each."""
        pa, pc = self.pa, self.pc
        pieces: list[Any] = []
        between = "{"
        for place in places:
            quote, text = texts[place]
            name = json.dumps(table.table.columns[place].name, ensure_ascii=False)
            pieces += [f"{between}{name}:{quote}", text]
            between = f"{quote},"
        if not pieces:
            return pa.array(["{}"] * count, pa.string())
        return pc.binary_join_element_wise(*pieces, between.removesuffix(",") + "}", "")

    def _json(self, values: BinaryArray) -> tuple[str, Array]:
        """Return encoded values as JSON text, and the quote that belongs around each."""
        pa, pc = self.pa, self.pc
        first = pc.binary_slice(values, 0, 1)
        tags = pa.Array.from_buffers(pa.uint8(), len(values), [None, first.buffers()[2]])
        different = pc.unique(tags).to_pylist()
        if len(different) == 1:
            return self._json_of(different[0], values)
        texts, places = [], []
        for tag in different:
            mask = pc.equal(tags, tag)
            quote, text = self._json_of(tag, values.filter(mask))
            if quote:
                text = pc.binary_replace_slice(text, 0, 0, quote)
                text = pc.binary_replace_slice(text, _ANY_END, _ANY_END, quote)
            texts.append(text)
            places.append(pc.indices_nonzero(mask))
        return "", pa.concat_arrays(texts).take(pc.array_sort_indices(pa.concat_arrays(places)))

    def _json_of(self, tag: int, values: BinaryArray) -> tuple[str, Array]:
        """Return values of one tag as JSON text, and the quote that belongs around each."""
        pa, pc = self.pa, self.pc
        if tag in _CONSTANTS:
            return "", pa.array([_CONSTANTS[Tag(tag)]], pa.string()).take(
                self.number(array("i", bytes(4 * len(values))), pa.int32())
            )
        longest = pc.max(pc.binary_length(values)).as_py()
        if tag == Tag.I64 and longest <= 9:
            return "", self._integers(values).cast(pa.string())
        if tag in _QUOTED and longest <= _SHORT:
            text = self.text(pc.binary_slice(values, 2, _SHORT))
            if self._stands_for_itself(text):
                return '"', text
        found = values.dictionary_encode()
        texts = [value_json(value) for value in _decoded(found.dictionary.to_pylist())]
        return "", pa.array(texts, pa.string()).take(found.indices)

    def _stands_for_itself(self, text: Array) -> bool:
        """Whether JSON writes all of these texts as they are."""
        _, ends, data = text.buffers()
        size = memoryview(ends).cast("i")[len(text)]
        if not size:
            return True
        raw = bytes(memoryview(data)[:size])
        if b'"' in raw or b"\\" in raw:
            return False
        least = self.pc.min(self.pa.Array.from_buffers(self.pa.uint8(), size, [None, data])).as_py()
        return bool(least >= 0x20)

    def _integers(self, values: BinaryArray) -> Array:
        """Return the numbers of encoded integers that take no more than eight bytes."""
        pa, pc = self.pa, self.pc
        varints = pc.binary_slice(values, 1, 9)
        # Arrow pads what it takes for text, and does not look at what it is.
        eight = pc.ascii_rpad(pa.Array.from_buffers(pa.string(), len(varints), varints.buffers()), 8, padding="\0")
        word = pa.Array.from_buffers(pa.uint64(), len(values), [None, eight.buffers()[2]])
        longest = pc.max(pc.binary_length(values)).as_py() - 1
        folded = pc.bit_wise_and(word, pa.scalar(0x7F, pa.uint64()))
        for byte in range(1, longest):
            seven = pc.bit_wise_and(word, pa.scalar(0x7F << 8 * byte, pa.uint64()))
            folded = pc.bit_wise_or(folded, pc.shift_right(seven, pa.scalar(byte, pa.uint64())))
        signed = folded.cast(pa.int64())  # below 2^56
        sign = pc.negate(pc.bit_wise_and(signed, pa.scalar(1, pa.int64())))
        return pc.bit_wise_xor(pc.shift_right(signed, pa.scalar(1, pa.int64())), sign)


def _decoded(values: Sequence[bytes]) -> list[Any]:
    """Decode values one by one, together."""
    builder = PayloadBuilder()
    for value in values:
        builder.add_encoded(_ONE_COLUMN, Op.INSERT, value)
    found: list[Any] = []
    for change in decode(builder.take()).changes:
        assert isinstance(change, RowChange) and change.after is not None
        found += change.after
    return found


def _shown(sql: bytes) -> str:
    return sql.decode(errors="replace")


__all__ = [
    "ALL",
    "BATCH_BYTES",
    "BATCH_ROWS",
    "COLUMNS",
    "KNOWN_COLUMNS",
    "Selection",
    "Unit",
    "batch_schema",
    "read_batches",
]
