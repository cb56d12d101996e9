"""What a MariaDB server's catalog says of its tables: columns, keys, collations.

Owns the questions to information_schema that capture asks beside the stream. The hard idea: the catalog knows the
present, the stream the past. So from the catalog comes only what the binlog does not hold (which keys a table has
beside its primary key, which BINARY(16) is a UUID), it is asked again after each DDL, and nothing of it changes how
many bytes of a row belong to a column.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from tranlog.change import TableName
from tranlog.errors import SourceSetupError
from tranlog.servers.mariadb_rights import has_right
from tranlog.source.mariadb.connection import Control, MariadbSourceOptions
from tranlog.source.mariadb.types import CatalogColumn, KnownForeignKey, KnownTable

_CHANGES_OTHER_ROWS: Final = ("CASCADE", "SET NULL", "SET DEFAULT")


class Catalog:
    """Answers about one server's tables. Threads: one."""

    def __init__(self, options: MariadbSourceOptions, control: Control) -> None:
        self._options = options
        self._control = control
        self._known: dict[TableName, KnownTable | None] = {}

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

    def folds_names(self) -> bool:
        """Whether the server keeps names of databases and tables in lower case, however a statement spells them."""
        return str(self._control.rows("SELECT @@lower_case_table_names")[0][0]) == "1"

    def forget_tables(self) -> None:
        """Ask anew about every table: there was DDL."""
        self._known.clear()

    def table(self, schema: str, table: str) -> KnownTable | None:
        """Return what is known of a table now; None when there is none. Remembered until `forget_tables`."""
        name = (schema, table)
        if name not in self._known:
            self._known[name] = self._ask(schema, table)
        return self._known[name]

    def _ask(self, schema: str, table: str) -> KnownTable | None:
        # In this order: what is changed between the two questions has the later time.
        columns = self._control.rows(
            "SELECT column_name, column_type, is_generated = 'ALWAYS' "
            "AND generation_expression NOT IN ('ROW START', 'ROW END') FROM information_schema.columns "
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
            types={str(name): str(spelled) for name, spelled, _ in columns},
            generated=frozenset([str(name) for name, _, generated in columns if generated]),
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

    def captured_tables(self, only: TableName | None = None) -> list[tuple[str, str, bool]]:
        """Return (schema, table, whether system-versioned) of the captured tables, or `only` one, in order."""
        sql = (
            "SELECT table_schema, table_name, table_type FROM information_schema.tables "
            "WHERE table_type IN ('BASE TABLE', 'SYSTEM VERSIONED') AND table_schema = %s "
        )
        if only is None:
            rows = self._of_captured(f"{sql}ORDER BY table_name")
        else:
            rows = self._control.rows(f"{sql}AND table_name = %s", only) if self._options.captures(only[0]) else []
        return [(str(row[0]), str(row[1]), row[2] == "SYSTEM VERSIONED") for row in rows]

    def tables_without_triggers(self) -> set[TableName]:
        """Return the captured tables of InnoDB whose changes change no other table at the server.

        None of a database whose triggers are hidden from the user, who lacks TRIGGER.
        """
        grants = [str(row[0]) for row in self._control.rows("SHOW GRANTS")]
        rows = self._of_captured(
            "SELECT t.table_schema, t.table_name FROM information_schema.tables t "
            "WHERE t.table_type IN ('BASE TABLE', 'SYSTEM VERSIONED') AND t.engine = 'InnoDB' AND t.table_schema = %s "
            "AND NOT EXISTS (SELECT 1 FROM information_schema.triggers g "
            "WHERE g.event_object_schema = t.table_schema AND g.event_object_table = t.table_name)"
        )
        return {(str(row[0]), str(row[1])) for row in rows if has_right(grants, ["TRIGGER"], str(row[0]))}

    def rows_estimated(self, schema: str, table: str) -> int:
        """Return how many rows the engine takes a table for; 0 where it does not know."""
        sql = "SELECT table_rows FROM information_schema.tables WHERE table_schema = %s AND table_name = %s"
        return int((self._control.rows(sql, (schema, table)) or [(0,)])[0][0] or 0)

    def without_transactions(self) -> dict[str, str]:
        """Return the captured tables whose engine has no transactions, `schema.table`, with the engine."""
        rows = self._of_captured(
            "SELECT t.table_schema, t.table_name, t.engine FROM information_schema.tables t "
            "JOIN information_schema.engines e ON e.engine = t.engine "
            "WHERE COALESCE(e.transactions, 'NO') <> 'YES' AND t.table_type <> 'SEQUENCE' AND t.table_schema = %s"
        )
        return {f"{schema}.{table}": str(engine) for schema, table, engine in rows}

    def now_s(self) -> int:
        """Return the server's time in seconds since 1970."""
        return int(self._control.rows("SELECT UNIX_TIMESTAMP()")[0][0])

    def alike_columns(self) -> list[tuple[TableName, str, str]]:
        """Return table, name and type of each captured column whose type the binlog may not tell."""
        rows = self._of_captured(
            "SELECT table_schema, table_name, column_name, column_type FROM information_schema.columns "
            "WHERE table_schema = %s AND data_type IN ('uuid', 'inet6', 'inet4', 'binary')"
        )
        return [((str(row[0]), str(row[1])), str(row[2]), str(row[3])) for row in rows]

    def _of_captured(self, sql: str) -> list[tuple[Any, ...]]:
        """Ask about each captured database by itself: a table that is locked elsewhere does not delay it."""
        schemas = sorted(str(row[0]) for row in self._control.rows("SHOW DATABASES"))
        return [row for schema in filter(self._options.captures, schemas) for row in self._control.rows(sql, (schema,))]
