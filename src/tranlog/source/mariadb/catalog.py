"""What a MariaDB server says about itself and its tables: settings, positions, information_schema.

Owns every question that capture asks beside the stream, and the refusal of servers that cannot be captured. The hard
idea: the catalog knows the present, the stream the past. So from the catalog comes only what the binlog does not hold
(which keys a table has beside its primary key, which BINARY(16) is a UUID), it is asked again after each DDL, and
nothing of it changes how many bytes of a row belong to a column.

Source: design/sources.md, "MariaDB".
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Final

import msgspec

from tranlog.change import TableName
from tranlog.errors import PositionLostError, SourceError, SourceSetupError
from tranlog.source.mariadb.connection import Control, MariadbSourceOptions
from tranlog.source.mariadb.events import Xid
from tranlog.source.mariadb.position import (
    OFFSETS_WRAP_AT,
    SERVER_CHARACTERS,
    BinlogPosition,
    DomainGtid,
    StartAtFile,
    StartAtGtids,
    StartEarliest,
    StartNow,
    gtid_text,
    is_newer_file,
    parse_gtids,
    parse_start,
    why_lost,
)
from tranlog.source.mariadb.types import (
    CatalogColumn,
    KnownForeignKey,
    KnownTable,
    alike_after,
    alike_in_binlog,
)

logger = logging.getLogger(__name__)

_WANTED: Final = (
    ("binlog_format", "ROW"),
    ("binlog_row_image", "FULL"),
    ("binlog_row_metadata", "FULL"),
)
_FILE_START: Final = 4
"""Every binlog file begins with four bytes that are no event."""
_ALIKE_MAX: Final = 50_000
"""Of so many tables it is remembered which columns the binlog does not tell apart."""
_CHANGES_OTHER_ROWS: Final = ("CASCADE", "SET NULL", "SET DEFAULT")


@dataclass(frozen=True, slots=True, kw_only=True)
class Resumption:
    """How to go on at a server: the position as it is there, and where its last transaction proves it, if it can.

    `look` is a file and an offset in it, at or in front of that transaction.
    """

    position: BinlogPosition
    look: tuple[str, int] | None = None


class Catalog:
    """Answers about one server. Threads: one."""

    def __init__(self, options: MariadbSourceOptions, control: Control) -> None:
        self._options = options
        self._control = control
        self._known: dict[TableName, KnownTable | None] = {}
        self._alike: dict[TableName, dict[str, str]] = {}
        self._seen_at: dict[TableName, int] = {}
        """Up to and including this second such columns may have been others than they were when they were seen."""

    # Settings.

    def check_setup(self) -> None:
        """Refuse a server that does not log full rows. Raises SourceSetupError, whose remedy holds the statements."""
        where = self._options.where
        variables = self._variables()
        version = variables.get("version", "")
        if "mariadb" not in version.lower():
            raise SourceSetupError(
                why=f"{where} is version {version!r}, not MariaDB", remedy="Name a MariaDB server, 10.5 or newer"
            )
        if variables.get("log_bin") != "ON":
            raise SourceSetupError(
                why=f"{where} keeps no binary log",
                remedy="Start the server with --log-bin --server-id=<number> --binlog-format=ROW "
                "--binlog-row-image=FULL --binlog-row-metadata=FULL, or put these into its configuration file",
            )
        wrong = [(name, value) for name, value in _WANTED if variables.get(name, "OFF") != value]
        if wrong and "binlog_row_metadata" not in variables:
            raise SourceSetupError(
                why=f"{where} is version {version!r}, which cannot log column names",
                remedy="Capture needs MariaDB 10.5 or newer",
            )
        if wrong:
            found = ", ".join(f"{name} is {variables[name]}" for name, _ in wrong)
            statements = "; ".join(f"SET GLOBAL {name} = '{value}'" for name, value in wrong)
            raise SourceSetupError(
                why=f"at {where} {found}",
                remedy=f"Run at the source: {statements}; and put the same into its configuration file. Sessions that "
                "are open already keep the old format: end them before you start capture again",
            )
        if variables.get("log_slave_updates") == "OFF" and variables.get("gtid_slave_pos"):
            logger.warning(
                "This source is a replica without log_slave_updates: what it replicates is not captured. where=%s",
                where,
            )

    def _variables(self) -> dict[str, str]:
        names = [name for name, _ in _WANTED] + ["version", "log_bin", "log_slave_updates", "gtid_slave_pos"]
        listed = ", ".join(f"'{name}'" for name in names)
        rows = self._control.rows(f"SHOW GLOBAL VARIABLES WHERE Variable_name IN ({listed})")
        return {str(name).lower(): str(value) for name, value in rows}

    def server_id(self) -> int:
        """Return the server's own id."""
        return int(self._control.rows("SELECT @@global.server_id")[0][0])

    def collations(self) -> tuple[dict[int, str], dict[int, str]]:
        """Return the charset and the name of each collation by the server's number for it."""
        try:
            rows = self._control.rows(
                "SELECT id, character_set_name, full_collation_name "
                "FROM information_schema.collation_character_set_applicability WHERE id IS NOT NULL"
            )
        except SourceSetupError:  # before 10.10 the numbers stand here
            rows = self._control.rows(
                "SELECT id, character_set_name, collation_name FROM information_schema.collations WHERE id IS NOT NULL"
            )
        return {int(row[0]): str(row[1]) for row in rows}, {int(row[0]): str(row[2]) for row in rows}

    # Positions.

    def first_position(self) -> BinlogPosition:
        """Return where a log without any event starts. Raises SourceSetupError, PositionLostError.

        Where an XA transaction may have been prepared in front of it, the binlog is read from its beginning for that.
        """
        position = self._first()
        start = parse_start(self._options.start)
        if isinstance(start, StartEarliest) or not (
            self.prepared_xids() or (not isinstance(start, StartNow) and self._has_committed_xa())
        ):
            return position
        return msgspec.structs.replace(position, prepared=self._at_file(self.oldest_file(), _FILE_START, "").gtids)

    def _has_committed_xa(self) -> bool:
        return int(self._control.rows("SHOW GLOBAL STATUS LIKE 'Com_xa_commit'")[0][1]) > 0

    def _first(self) -> BinlogPosition:
        text = self._options.start
        start = parse_start(text)
        match start:
            case StartNow():
                return self._now()
            case StartEarliest():
                return self._at_file(self._files()[0][0], _FILE_START, text)
            case StartAtGtids():
                return self.resume(BinlogPosition(gtids=start.gtids)).position
            case StartAtFile():
                return self._at_file(start.file, start.offset, text)

    def _now(self) -> BinlogPosition:
        gtids = parse_gtids(self._control.rows("SELECT @@global.gtid_binlog_pos")[0][0])
        if gtids:
            # Without a file: between two questions the server may have gone on.
            return BinlogPosition(gtids=gtids)
        # A server that has written no transaction yet: the start of its file, so that the event id is not empty.
        return BinlogPosition(file=self._files()[-1][0], offset=_FILE_START)

    def _at_file(self, file: str, offset: int, text: str) -> BinlogPosition:
        gtids = self._control.rows("SELECT BINLOG_GTID_POS(%s, %s)", (file, offset))[0][0]
        if gtids is None:
            raise PositionLostError(
                event_id=text,
                why=f"{self._options.where} has no file {file}, or no event of it ends at offset {offset}",
            )
        return BinlogPosition(gtids=parse_gtids(gtids), file=file, offset=offset)

    def oldest_file(self) -> str:
        """Return the oldest file of the binlog that is not purged."""
        return self._files()[0][0]

    def _files(self) -> list[tuple[str, int]]:
        """Return the binlog's files and their sizes, the oldest first; there is at least one."""
        files = [(str(row[0]), int(row[1])) for row in self._control.rows("SHOW BINARY LOGS")]
        if not files:
            raise SourceSetupError(why=f"{self._options.where} has no binlog file", remedy="Check its log_bin")
        return files

    def server(self) -> str:
        """Return the beginning of the server's uid; empty where the version has none."""
        rows = self._control.rows("SHOW GLOBAL VARIABLES LIKE 'server_uid'")
        return str(rows[0][1])[:SERVER_CHARACTERS] if rows else ""

    def resume(self, position: BinlogPosition, *, accepted: bool = False) -> Resumption:
        """Refuse a position that this server never had or has lost; say how to go on. Raises PositionLostError.

        The GTIDs are held against what the server ever wrote. File and offset are held against its files where they
        are its own: after a crash that cost it its last transactions a server gives out the same GTIDs once more, in
        another file. What GTIDs and numbers cannot tell, the last transaction must prove: the answer says where to
        look for it. `accepted`: an operator's word stands in the place of all proof.
        """
        state: dict[int, int] = {}
        for gtid in _state(self._control.rows("SELECT @@global.gtid_binlog_state")[0][0]):
            state[gtid[0]] = max(gtid[2], state.get(gtid[0], 0))
        why = why_lost(position, server_state=state)
        if why is not None:
            raise PositionLostError(event_id=str(position), why=why)
        server = self.server()
        kept = tuple(gtid for gtid in position.gtids if gtid.domain in state)
        prepared = position.prepared
        if prepared is not None:
            prepared = tuple(gtid for gtid in prepared if gtid.domain in state)
        on = msgspec.structs.replace(position, gtids=kept, server=server, prepared=prepared)
        if accepted:
            return Resumption(position=msgspec.structs.replace(on, file="", offset=0, last=None))
        files = self._files()
        own = position.server == server if position.server else self._wrote(position)
        if own and position.file and position.offset:
            size = dict(files).get(position.file)
            if size is None:
                if is_newer_file(position.file, files[-1][0]):
                    why = f"its newest file is {files[-1][0]}: the server's binlog was reset"
            elif size < OFFSETS_WRAP_AT:
                why = self._why_not_in_file(position, kept, size)
                if why is None:
                    at = position.offset - position.last.size if position.last is not None else 0
                    return Resumption(position=on, look=(position.file, at) if at > 0 else None)
        last = position.last
        wrote = {gtid.domain: gtid for gtid in kept}.get(last.domain) if last is not None else None
        if why is None and wrote is not None:
            file = self._file_of(wrote, files)
            if file is not None:
                return Resumption(position=on, look=(file, _FILE_START))
            if not own:
                why = f"transaction {wrote}, which would prove that it is of the same history, is purged there"
        elif why is None and (kept != position.gtids or (not own and position.server)):
            why = "the event id says too little to prove that it is of the same history"
        if why is not None:
            raise self.lost(position, why)
        return Resumption(position=on)  # what is purged of its own files, the server says itself

    def lost(self, position: BinlogPosition, why: str) -> PositionLostError:
        """Return the refusal of a server as another one than the log's."""
        whose = f" was captured from server {position.server}" if position.server else ""
        return PositionLostError(
            event_id=str(position),
            why=f"{self._options.where} is server {self.server()}; the log{whose}; {why}",
            way_on="Where this server has what that one had (a replica, a primary, the same server moved), "
            "`tranlog capture --accept-server` goes on by GTID. ",
        )

    def lost_branches(self, position: BinlogPosition, why: str) -> PositionLostError:
        """Return the refusal of a place in front of a prepared XA transaction that the server does not have."""
        listed = "; ".join(map(str, self.prepared_xids())) or "none any more"
        return PositionLostError(
            event_id=str(position),
            why="an XA transaction was prepared behind GTIDs "
            f"{gtid_text(position.prepared or ()) or '(none)'} and had not ended, and what it changed is not to be had "
            f"({why}); prepared there are now: {listed}",
        )

    def prepared_xids(self) -> list[Xid]:
        """Return the XA transactions that are prepared at the server."""
        xids = []
        for form, gtrid_bytes, _, data in self._control.rows("XA RECOVER"):
            name = data if isinstance(data, bytes) else data.encode()
            xids.append(Xid(int(form), name[:gtrid_bytes], name[gtrid_bytes:]))
        return xids

    def _wrote(self, position: BinlogPosition) -> bool:
        own = self.server_id()
        return not position.gtids or any(gtid.server_id == own for gtid in position.gtids)

    def _file_of(self, gtid: DomainGtid, files: list[tuple[str, int]]) -> str | None:
        """Return the file that must hold a transaction; None where it is purged."""
        low, high = 0, len(files)  # files below `low` begin in front of it
        while low < high:
            middle = (low + high) // 2
            found = self._control.rows("SELECT BINLOG_GTID_POS(%s, %s)", (files[middle][0], _FILE_START))[0][0]
            behind = {one.domain: one for one in parse_gtids(found or "")}.get(gtid.domain)
            if behind is None or behind.sequence < gtid.sequence:
                low = middle + 1
            else:
                high = middle
        return files[low - 1][0] if low else None

    def _why_not_in_file(self, position: BinlogPosition, kept: tuple[DomainGtid, ...], size: int) -> str | None:
        if size < position.offset:
            return f"{position.file} ends at offset {size}: the server lost the end of its binlog, or was reset"
        found = self._control.rows("SELECT BINLOG_GTID_POS(%s, %s)", (position.file, position.offset))[0][0]
        if found is None:
            # An event before it that is larger than max_allowed_packet keeps the server from an answer as well.
            if self._is_boundary(position.file, position.offset):
                return None
            return f"no event of {position.file} ends at offset {position.offset}: it is not the file that was captured"
        if parse_gtids(found) not in (position.gtids, kept):
            return (
                f"at offset {position.offset} of {position.file} the server stands at GTID {found or '(none)'}, not at "
                f"{gtid_text(position.gtids) or '(none)'}: it is not the file that was captured"
            )
        return None

    def _is_boundary(self, file: str, offset: int) -> bool:
        """Whether an event of the file begins at the offset, or the last one ends there."""
        try:
            self._control.rows(f"SHOW BINLOG EVENTS IN '{file}' FROM {offset:d} LIMIT 1")
        except SourceError:
            return False
        return True

    # Tables.

    def forget_tables(self) -> None:
        """Ask anew about every table: there was DDL."""
        self._known.clear()

    def table(self, schema: str, table: str) -> KnownTable | None:
        """Return what is known of a table now; None when there is none. Remembered until `forget_tables`."""
        name = (schema, table)
        if name not in self._known:
            self._known[name] = self._ask(schema, table)
        return self._known[name]

    def as_of(self, schema: str, table: str, second: int) -> tuple[KnownTable, frozenset[str]]:
        """Return what a table's types were in this second, as far as is known; and of which columns that is certain.

        Columns that the binlog does not tell apart (UUID, INET6, BINARY) are what the catalog says where the table has
        not changed since, else what they were when it was last seen, or created, before that; else what the option
        column_types says. Where all that is silent there is the catalog's word of now, which is not certain.
        """
        known = self.table(schema, table) or KnownTable(types={})
        name = (schema, table)
        if known.changed_at is not None and known.changed_at < second:
            self._note(name, alike_in_binlog(known.types))
        start = f"{schema}.{table}."
        columns = dict([said[len(start) :].split("=") for said in self._options.column_types if said.startswith(start)])
        if second > self._seen_at.get(name, -1):
            columns |= self._alike.get(name, {})
        return replace(known, types={**known.types, **columns}), frozenset(columns)

    def note_statement(self, schema: str, sql: str) -> None:
        """Remember what a statement says of such columns: the table may be gone, or another one, when rows come."""
        for name, columns in alike_after(schema, sql, self._alike).items():
            if self._options.captures(name[0]):
                self._note(name, columns)

    def note_present(self, *, now: bool) -> None:
        """Remember such columns of all captured tables. `now`: nothing has changed since the position."""
        seen_at = -1 if now else int(self._control.rows("SELECT UNIX_TIMESTAMP()")[0][0])
        for schema, table, column, declared in self._of_captured(
            "SELECT table_schema, table_name, column_name, column_type FROM information_schema.columns "
            "WHERE table_schema = %s AND data_type IN ('uuid', 'inet6', 'inet4', 'binary')"
        ):
            name = (str(schema), str(table))
            columns = alike_in_binlog({str(column): str(declared)})
            self._note(name, {**self._alike.get(name, {}), **columns}, seen_at=seen_at)

    def _note(self, name: TableName, columns: dict[str, str], *, seen_at: int = -1) -> None:
        self._seen_at[name] = seen_at
        self._alike.pop(name, None)
        if columns:
            self._alike[name] = columns
            if len(self._alike) > _ALIKE_MAX:
                del self._alike[next(iter(self._alike))]
        if name not in self._alike or seen_at < 0:
            self._seen_at.pop(name, None)

    def _ask(self, schema: str, table: str) -> KnownTable | None:
        # In this order: what is changed between the two questions has the later time.
        columns = self._control.rows(
            "SELECT column_name, column_type FROM information_schema.columns "
            "WHERE table_schema = %s AND table_name = %s",
            (schema, table),
        )
        tables = self._control.rows(
            "SELECT t.table_type, e.transactions, IF(t.engine = 'InnoDB', UNIX_TIMESTAMP(t.create_time), NULL) "
            "FROM information_schema.tables t LEFT JOIN information_schema.engines e ON e.engine = t.engine "
            "WHERE t.table_schema = %s AND t.table_name = %s",
            (schema, table),
        )
        if not tables:
            return None
        return KnownTable(
            types={str(name): str(spelled) for name, spelled in columns},
            # The old rows of a system-versioned table repeat what is unique among its present ones.
            unique_keys=() if tables[0][0] == "SYSTEM VERSIONED" else self._unique_keys(schema, table),
            foreign_keys=self._foreign_keys(schema, table),
            transactional=tables[0][1] == "YES",
            sequence=tables[0][0] == "SEQUENCE",
            changed_at=None if tables[0][2] is None else int(tables[0][2]),
        )

    def _unique_keys(self, schema: str, table: str) -> tuple[tuple[str, ...], ...]:
        """Return a table's unique keys over whole columns, by their names; the primary key is not among them."""
        rows = self._control.rows(
            "SELECT index_name, column_name, sub_part FROM information_schema.statistics "
            "WHERE table_schema = %s AND table_name = %s AND non_unique = 0 AND index_name <> 'PRIMARY' "
            "ORDER BY index_name, seq_in_index",
            (schema, table),
        )
        keys: dict[str, list[str]] = {}
        partial: set[str] = set()
        for index, column, sub_part in rows:
            keys.setdefault(str(index), []).append(str(column))
            if sub_part is not None or column is None:
                partial.add(str(index))
        return tuple(tuple(columns) for index, columns in keys.items() if index not in partial)

    def _foreign_keys(self, schema: str, table: str) -> tuple[KnownForeignKey, ...]:
        """Return a table's foreign keys, by their names."""
        rows = self._control.rows(
            "SELECT constraint_name, column_name, referenced_table_schema, referenced_table_name, "
            "referenced_column_name FROM information_schema.key_column_usage "
            "WHERE table_schema = %s AND table_name = %s AND referenced_table_name IS NOT NULL "
            "ORDER BY constraint_name, ordinal_position",
            (schema, table),
        )
        keys: dict[str, list[tuple[Any, ...]]] = {}
        for row in rows:
            keys.setdefault(str(row[0]), []).append(row)
        return tuple(
            KnownForeignKey(
                columns=tuple(str(row[1]) for row in parts),
                ref_schema=str(parts[0][2]),
                ref_table=str(parts[0][3]),
                ref_columns=tuple(str(row[4]) for row in parts),
            )
            for parts in keys.values()
        )

    def foreign_key_edges(self) -> list[tuple[TableName, TableName]]:
        """Return (referring table, referred table) of the whole server's foreign keys between captured databases.

        Raises SourceSetupError for one that changes rows which the binlog does not hold, unless `cascades` allows it.
        """
        rows = self._of_captured(
            "SELECT constraint_schema, table_name, unique_constraint_schema, referenced_table_name, constraint_name, "
            "update_rule, delete_rule FROM information_schema.referential_constraints "
            "WHERE constraint_schema = %s ORDER BY table_name, constraint_name"
        )
        if self._options.cascades == "refuse":
            self._refuse_cascades(rows)
        return [((str(row[0]), str(row[1])), (str(row[2]), str(row[3]))) for row in rows]

    def _refuse_cascades(self, rows: Iterable[tuple[Any, ...]]) -> None:
        named = []
        for schema, table, _, referred, constraint, on_update, on_delete in rows:
            rules = [
                f"ON {event} {rule}"
                for event, rule in (("UPDATE", on_update), ("DELETE", on_delete))
                if rule in _CHANGES_OTHER_ROWS
            ]
            if rules:
                named.append(f"{constraint} of {schema}.{table} to {referred} ({' '.join(rules)})")
        if named:
            more = f" and {len(named) - 5} more" if len(named) > 5 else ""
            raise SourceSetupError(
                why="foreign keys that change rows by themselves, which MariaDB does not write to its binlog: "
                + "; ".join(named[:5])
                + more,
                remedy="ALTER TABLE ... DROP FOREIGN KEY, and add them with ON DELETE RESTRICT ON UPDATE RESTRICT, "
                'or set the option cascades = "allow", if every target has the same foreign keys. If such a key '
                "was added while capture ran, compare the targets by `tranlog verify`",
            )

    def hides_its_period(self, schema: str, table: str) -> bool:
        """Whether a system-versioned table has the columns `row_start` and `row_end` without showing them."""
        rows = self._control.rows(
            "SELECT COUNT(*) FROM information_schema.columns "
            "WHERE table_schema = %s AND table_name = %s AND generation_expression = 'ROW START'",
            (schema, table),
        )
        return not rows[0][0]

    def columns(self, schema: str, table: str) -> list[CatalogColumn]:
        """Return a table's columns in their order, invisible ones among them."""
        rows = self._control.rows(
            "SELECT column_name, data_type, column_type, is_nullable, character_set_name, character_maximum_length, "
            "character_octet_length, numeric_precision, numeric_scale, datetime_precision "
            "FROM information_schema.columns WHERE table_schema = %s AND table_name = %s ORDER BY ordinal_position",
            (schema, table),
        )
        return [
            CatalogColumn(
                name=str(row[0]),
                data_type=str(row[1]).lower(),
                column_type=str(row[2]),
                nullable=row[3] == "YES",
                charset=None if row[4] is None else str(row[4]),
                characters=row[5],
                octets=row[6],
                precision=row[7],
                scale=row[8],
                decimals=row[9],
            )
            for row in rows
        ]

    def unchanged_since(self, schema: str, table: str, second: int) -> bool:
        """Whether a table's definition is the one that it had in this second, by the time of its file.

        InnoDB alone keeps that time at every ALTER.
        """
        rows = self._control.rows(
            "SELECT UNIX_TIMESTAMP(create_time) FROM information_schema.tables "
            "WHERE table_schema = %s AND table_name = %s AND engine = 'InnoDB'",
            (schema, table),
        )
        return bool(rows) and rows[0][0] is not None and rows[0][0] <= second

    def primary_key(self, schema: str, table: str) -> tuple[str, ...]:
        """Return the names of the columns of a table's primary key, in the key's order."""
        rows = self._control.rows(
            "SELECT column_name FROM information_schema.statistics "
            "WHERE table_schema = %s AND table_name = %s AND index_name = 'PRIMARY' ORDER BY seq_in_index",
            (schema, table),
        )
        return tuple(str(row[0]) for row in rows)

    def captured_tables(self) -> list[tuple[str, str, bool]]:
        """Return (schema, table, whether system-versioned) of the captured tables, in order."""
        rows = self._of_captured(
            "SELECT table_schema, table_name, table_type FROM information_schema.tables "
            "WHERE table_type IN ('BASE TABLE', 'SYSTEM VERSIONED') AND table_schema = %s ORDER BY table_name"
        )
        return [(str(row[0]), str(row[1]), row[2] == "SYSTEM VERSIONED") for row in rows]

    def _of_captured(self, sql: str) -> list[tuple[Any, ...]]:
        """Ask about each captured database by itself: a table that is locked elsewhere does not delay it."""
        schemas = sorted(str(row[0]) for row in self._control.rows("SHOW DATABASES"))
        return [row for schema in filter(self._options.captures, schemas) for row in self._control.rows(sql, (schema,))]


def _state(text: str) -> list[tuple[int, int, int]]:
    """Read a binlog state: like a GTID list, but with a GTID of every server in each domain."""
    entries = []
    for part in filter(None, text.split(",")):
        domain, server_id, sequence = part.strip().split("-")
        entries.append((int(domain), int(server_id), int(sequence)))
    return entries
