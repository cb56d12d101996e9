"""Cutting a stream of changes into batches, and its net effect: pure."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence

import pytest

from fix_target import (
    AUTHORS,
    BOOKS,
    FOLDERS,
    ID,
    INTEGER,
    ITEMS,
    MOVES,
    PAGES,
    REFERS,
    TEXT,
    Family,
    Model,
    Row,
    column,
    content,
    delete,
    family_log,
    insert,
    orphan,
    table,
    update,
)
from tranlog.change import Change, Column, Op, RowChange, Statement, TableMap
from tranlog.ids import Seqno
from tranlog.target.batches import BATCH_BYTES, GATHER_ROWS, Batch, Placed, batch_inserts, batch_up, net_effect
from tranlog.target.binding import BATCH_ROWS, Binding, BoundColumn, Form, TargetColumn, TargetTable
from tranlog.target.postgres_dialect import PostgresForms
from tranlog.target.related import Related, related
from tranlog.types import UNCHANGED, Value


def bind(
    table: TableMap,
    unique: Sequence[str] = ("id",),
    *,
    order_unseen: bool = False,
    related: Related | None = None,
    acts: bool = False,
) -> Binding:
    """A table at a PostgreSQL that has it as it is."""
    categories = {INTEGER: "integer", TEXT: "text"}
    columns = {
        c.name: TargetColumn(name=c.name, type_name="int8", declared="bigint", category=categories[c.logical])
        for c in table.columns
    }
    bound = [BoundColumn(index=i, name=c.name, source=c, target=columns[c.name]) for i, c in enumerate(table.columns)]
    target = TargetTable(columns=columns, unique=frozenset(unique), place="ctid", order_unseen=order_unseen)
    return Binding(table, target, table.table, bound, PostgresForms(), related, lambda: acts)


BINDINGS = {each: bind(each) for each in (ITEMS, MOVES)}


def placed(*changes: Change) -> list[Placed]:
    return [(Seqno(i), change) for i, change in enumerate(changes)]


def cut(*changes: Change, bindings: Mapping[TableMap, Binding] = BINDINGS) -> list[str]:
    """What goes out, one text per statement."""
    out = []
    for item in batch_up(placed(*changes), lambda table, seqno: bindings[table]):
        if isinstance(item, Batch):
            out.append(
                f"{item.form.op.name} {item.form.sql.split()[1 if item.form.op == Op.UPDATE else 2]} {len(item.rows)}"
            )
        else:
            out.append(f"statement at {item[0]}")
    return out


def row(n: int, name: str | None = "a", number: int = 1) -> Row:
    return (n, name, number)


DDL = Statement(schema="", sql="ALTER", ddl=True)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ([], []),
        ([insert(ITEMS, row(1)), insert(ITEMS, row(2))], ["INSERT items 2"]),
        (
            [insert(ITEMS, row(1)), insert(MOVES, row(2)), insert(ITEMS, row(3))],
            ["INSERT items 1", "INSERT moves 1", "INSERT items 1"],
        ),
        (
            [insert(ITEMS, row(1)), delete(ITEMS, row(1)), insert(ITEMS, row(1))],
            ["INSERT items 1", "DELETE items 1", "INSERT items 1"],
        ),
        ([update(ITEMS, row(1), row(1, "b")), update(ITEMS, row(2), row(2, "b"))], ["UPDATE items 2"]),
        (
            [update(ITEMS, row(1), row(1, "b")), update(ITEMS, row(2), row(2, "a", 5))],
            ["UPDATE items 1", "UPDATE items 1"],
        ),
        (
            [update(ITEMS, row(1), row(1, "b")), update(ITEMS, row(1, "b"), row(1, "c"))],
            ["UPDATE items 1", "UPDATE items 1"],
        ),
        ([update(ITEMS, row(1), row(2)), update(ITEMS, row(3), row(4))], ["UPDATE items 1", "UPDATE items 1"]),
        ([delete(ITEMS, row(1)), delete(ITEMS, row(2)), delete(ITEMS, row(1))], ["DELETE items 2", "DELETE items 1"]),
        ([delete(MOVES, row(1))] * 2, ["DELETE moves 1", "DELETE moves 1"]),
        ([insert(ITEMS, row(1)), DDL, insert(ITEMS, row(2))], ["INSERT items 1", "statement at 1", "INSERT items 1"]),
        ([DDL, DDL], ["statement at 0", "statement at 1"]),
    ],
)
def test_what_goes_out_together(changes: list[Change], expected: list[str]) -> None:
    assert cut(*changes) == expected


def test_a_batch_has_a_limit() -> None:
    assert cut(*[insert(ITEMS, row(i)) for i in range(2 * BATCH_ROWS + 1)]) == [
        f"INSERT items {BATCH_ROWS}",
        f"INSERT items {BATCH_ROWS}",
        "INSERT items 1",
    ]


def test_updates_of_a_unique_column_go_one_by_one() -> None:
    """Their order matters to the unique key, and a set-based update has none."""
    alone, _ = bind(ITEMS, unique=["id", "n"]).place(update(ITEMS, row(1), row(1, "a", 2)))
    together, _ = bind(ITEMS, unique=["id", "n"]).place(update(ITEMS, row(1), row(1, "b")))
    assert (alone.limit, together.limit) == (1, BATCH_ROWS)


# --- where the order of keys is not seen ----------------------------------------------------------------------------

OTHERS = table("others", *ITEMS.columns)
UNSEEN = {
    ITEMS: bind(ITEMS, order_unseen=True),
    OTHERS: bind(OTHERS, order_unseen=True),
    MOVES: bind(MOVES, (), order_unseen=True),
}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        (
            [insert(ITEMS, row(1)), insert(OTHERS, row(1)), delete(ITEMS, row(2)), insert(ITEMS, row(3))],
            ["INSERT items 2", "DELETE items 1", "INSERT others 1"],
        ),
        # One key's changes stay in their order, whoever joins them.
        (
            [
                insert(ITEMS, row(1)),
                update(ITEMS, row(1), row(1, "b")),
                update(ITEMS, row(2), row(2, "b")),
                delete(ITEMS, row(1, "b")),
                insert(ITEMS, row(3)),
                update(ITEMS, row(3), row(3, "b")),
            ],
            ["INSERT items 2", "UPDATE items 1", "UPDATE items 2", "DELETE items 1"],
        ),
        # Nobody passes a statement, a change of a key, or a table without a key.
        ([insert(ITEMS, row(1)), DDL, insert(ITEMS, row(2))], ["INSERT items 1", "statement at 1", "INSERT items 1"]),
        (
            [insert(ITEMS, row(1)), update(ITEMS, row(1), row(2)), insert(ITEMS, row(1))],
            ["INSERT items 1", "UPDATE items 1", "INSERT items 1"],
        ),
        (
            [insert(ITEMS, row(1)), insert(MOVES, row(1)), insert(ITEMS, row(2))],
            ["INSERT items 1", "INSERT moves 1", "INSERT items 1"],
        ),
    ],
)
def test_what_is_gathered(changes: list[Change], expected: list[str]) -> None:
    assert cut(*changes, bindings=UNSEEN) == expected


def test_only_known_tables_are_gathered() -> None:
    """Another unique key than the source's, or a key that may be NULL: then order may be seen."""
    loose = table("loose", column("id", INTEGER, "int(11)"), *ITEMS.columns[1:])
    assert bind(ITEMS, order_unseen=True).gathers
    assert not bind(ITEMS).gathers
    assert not bind(ITEMS, ("id", "n"), order_unseen=True).gathers
    assert not bind(ITEMS, ("n",), order_unseen=True).gathers
    assert not bind(loose, order_unseen=True).gathers
    assert not bind(ITEMS, order_unseen=True, related=Related(depth=1, circle=True, referred=True, own=False)).gathers


# --- where foreign keys see an order --------------------------------------------------------------------------------


REFERENCES = [((child.schema, child.table), (parent.schema, parent.table)) for child, parent in REFERS.items()]


def bind_related(table: TableMap, *, acts: bool = False) -> Binding:
    """As `bind`, at a target that has the foreign keys of the family."""
    how = related((AUTHORS.schema, table.table), REFERENCES)
    return bind(table, order_unseen=True, related=how, acts=acts)


FAMILY = {each: bind_related(each) for each in (AUTHORS, BOOKS, PAGES, FOLDERS)}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        # Who is referred to comes first and goes last, whatever else is changed.
        (
            [insert(PAGES, (1, None, 0)), insert(BOOKS, (1, None, 0)), insert(AUTHORS, (1, None, 0))]
            + [update(AUTHORS, (2, None, 0), (2, None, 1)), insert(PAGES, (2, 1, 0))],
            ["INSERT authors 1", "INSERT books 1", "INSERT pages 2", "UPDATE authors 1"],
        ),
        (
            [delete(AUTHORS, (1, None, 0)), delete(BOOKS, (1, 2, 0)), update(AUTHORS, (2, None, 0), (2, None, 1))]
            + [delete(PAGES, (1, 2, 0)), delete(BOOKS, (2, 2, 0))],
            ["UPDATE authors 1", "DELETE pages 1", "DELETE books 2", "DELETE authors 1"],
        ),
        # What comes in the place of a row that has gone waits; a leaf may go beside what comes.
        (
            [insert(AUTHORS, (1, None, 0)), delete(AUTHORS, (2, None, 0)), insert(AUTHORS, (2, None, 0))],
            ["INSERT authors 1", "DELETE authors 1", "INSERT authors 1"],
        ),
        (
            [insert(PAGES, (1, 1, 0)), delete(PAGES, (2, 1, 0)), insert(PAGES, (2, 1, 5))],
            ["INSERT pages 1", "DELETE pages 1", "INSERT pages 1"],
        ),
        # What comes after a row has gone does not pass it.
        (
            [delete(AUTHORS, (1, None, 0)), update(AUTHORS, (1, None, 0), (1, None, 1))],
            ["DELETE authors 1", "UPDATE authors 1"],
        ),
        ([delete(AUTHORS, (1, None, 0))] * 2, ["DELETE authors 1", "DELETE authors 1"]),
    ],
)
def test_what_is_gathered_of_related_tables(changes: list[Change], expected: list[str]) -> None:
    assert cut(*changes, bindings=FAMILY) == expected


def test_rows_that_take_others_with_them_pass_nothing() -> None:
    acts = {**FAMILY, AUTHORS: bind_related(AUTHORS, acts=True)}
    changes = [insert(BOOKS, (1, 1, 0)), delete(AUTHORS, (1, None, 0)), insert(BOOKS, (2, 2, 0))]
    assert cut(*changes, bindings=acts) == ["INSERT books 1", "DELETE authors 1", "INSERT books 1"]


def test_rows_of_a_table_that_refers_to_itself_go_one_after_the_other() -> None:
    """A server may look for what refers to a row while others of the statement are still there."""
    changes = [delete(FOLDERS, (2, 1, 0)), insert(AUTHORS, (1, None, 0)), delete(FOLDERS, (1, None, 0))]
    assert cut(*changes, bindings=FAMILY) == ["DELETE folders 1", "INSERT authors 1", "DELETE folders 1"]


def test_nothing_passes_the_change_that_a_table_was_altered_before() -> None:
    """The same name, and another binding: keys of both are the same rows."""
    wider = table("authors", *AUTHORS.columns, column("more", INTEGER, "int(11)"))
    bindings = {**FAMILY, wider: bind_related(wider)}
    changes = [
        insert(AUTHORS, (1, None, 0)),
        insert(wider, (2, None, 0, 1)),
        update(AUTHORS, (2, None, 0), (2, None, 1)),
    ]
    assert cut(*changes, bindings=bindings) == ["INSERT authors 1", "INSERT authors 1", "UPDATE authors 1"]


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize(("keys", "goes", "most"), [(8, 0.4, 400), (60, 0.02, 120)])
def test_references_hold_after_each_statement(keys: int, goes: float, most: int, seed: int) -> None:
    """As a database asks that checks them there; each change finds the row that the log's order has it find."""
    changes, wanted = family_log(random.Random(seed), 400, keys=keys, goes=goes)
    rows: Family = {one: {} for one in FAMILY}
    batches = 0
    names = {binding.name: one for one, binding in FAMILY.items()}
    for item in batch_up(placed(*changes), lambda table, seqno: FAMILY[table]):
        assert isinstance(item, Batch)
        batches += 1
        words = item.form.sql.split()
        of = rows[names[words[1 if item.form.op == Op.UPDATE else 2]]]
        for sent in item.rows:
            key = sent[0]
            assert isinstance(key, int)
            if item.form.op != Op.INSERT:
                assert of.pop(key) == sent[:3], f"seed {seed}"
            if item.form.op != Op.DELETE:
                assert key not in of, f"seed {seed}"
                of[key] = sent[-3:]
        assert orphan(rows) is None, f"seed {seed}: after {item.form.sql}"
    assert rows == wanted
    assert batches < most


def test_what_is_gathered_is_bounded() -> None:
    changes = placed(*[insert(ITEMS, row(i)) for i in range(GATHER_ROWS + 1)])
    taken = 0

    def counted() -> Iterator[Placed]:
        nonlocal taken
        for change in changes:
            taken += 1
            yield change

    first = next(iter(batch_up(counted(), lambda table, seqno: UNSEEN[table])))
    assert isinstance(first, Batch)
    assert (len(first.rows), taken) == (BATCH_ROWS, GATHER_ROWS)


@pytest.mark.parametrize("seed", range(20))
def test_each_key_keeps_its_order(seed: int) -> None:
    """Whatever is gathered, what happens to one key happens in the log's order."""
    chance = random.Random(seed)
    alive: dict[tuple[TableMap, int], Row] = {}
    changes: list[Change] = []
    for n in range(300):
        source, key = chance.choice((ITEMS, OTHERS)), chance.randrange(12)
        before = alive.pop((source, key), None)
        after = row(key, f"v{n}", n) if before is None or chance.random() < 0.7 else None
        if after is not None:
            alive[source, key] = after
        if before is None:
            changes.append(insert(source, after or row(key)))
        else:
            changes.append(delete(source, before) if after is None else update(source, before, after))
    wanted: dict[tuple[str, int], list[tuple[Op, Row]]] = {}
    for change in changes:
        assert isinstance(change, RowChange)
        _, sent = UNSEEN[change.table].place(change)
        wanted.setdefault((change.table.table, sent[0]), []).append((change.op, sent))  # type: ignore[arg-type]
    found: dict[tuple[str, int], list[tuple[Op, Row]]] = {}
    batches = 0
    for item in batch_up(placed(*changes), lambda table, seqno: UNSEEN[table]):
        assert isinstance(item, Batch)
        batches += 1
        name = "others" if "others" in item.form.sql else "items"
        assert len({sent[0] for sent in item.rows}) == len(item.rows), "a key stands once in a statement"
        for sent in item.rows:
            found.setdefault((name, sent[0]), []).append((item.form.op, sent))  # type: ignore[arg-type]
    assert found == wanted, f"seed {seed}"
    assert batches < len(changes) / 2


def test_a_binding_is_asked_for_again_after_a_statement() -> None:
    asked: list[int] = []

    def ask(table: TableMap, seqno: Seqno) -> Binding:
        asked.append(seqno)
        return BINDINGS[table]

    list(batch_up(placed(insert(ITEMS, row(1)), insert(ITEMS, row(2)), DDL, insert(ITEMS, row(3))), ask))
    assert asked == [0, 3]


def test_only_what_changed_is_written_and_unchanged_never() -> None:
    form, _ = BINDINGS[ITEMS].place(update(ITEMS, row(1), row(1, "b")))
    assert '"name"' not in form.sql  # the test's columns are not quoted
    assert "SET name = " in form.sql and "n = " not in form.sql.split("FROM")[0]
    unsent: Row = (1, UNCHANGED, 2)
    form, _ = BINDINGS[ITEMS].place(update(ITEMS, row(1), unsent))
    assert "SET n = " in form.sql and "name" not in form.sql
    again, _ = BINDINGS[ITEMS].place(update(ITEMS, row(7), (7, UNCHANGED, 9)))
    assert again is form


# --- net effect -----------------------------------------------------------------------------------------------------


def net(*changes: Change) -> list[Change]:
    return [change for _, change in net_effect(placed(*changes))]


A, B, C = row(1, "a"), row(1, "b"), row(1, "c")


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ([insert(ITEMS, A), update(ITEMS, A, B)], [insert(ITEMS, B)]),
        ([insert(ITEMS, A), update(ITEMS, A, B), delete(ITEMS, B)], []),
        ([update(ITEMS, A, B), update(ITEMS, B, C)], [update(ITEMS, A, C)]),
        ([update(ITEMS, A, B), delete(ITEMS, B)], [delete(ITEMS, A)]),
        ([delete(ITEMS, A), insert(ITEMS, C)], [update(ITEMS, A, C)]),
        ([delete(ITEMS, A), insert(ITEMS, B), delete(ITEMS, B)], [delete(ITEMS, A)]),
        ([update(ITEMS, A, row(2))], [delete(ITEMS, A), insert(ITEMS, row(2))]),
        (
            [update(ITEMS, A, (1, UNCHANGED, 5)), update(ITEMS, (1, "a", 5), (1, UNCHANGED, 6))],
            [update(ITEMS, A, (1, UNCHANGED, 6))],
        ),
        ([update(ITEMS, A, (2, UNCHANGED, 5))], [delete(ITEMS, A), insert(ITEMS, (2, "a", 5))]),
        ([insert(ITEMS, A), DDL, update(ITEMS, A, B)], [insert(ITEMS, A), DDL, update(ITEMS, A, B)]),
        (
            [insert(MOVES, A), update(MOVES, A, B), delete(MOVES, B)],
            [insert(MOVES, A), update(MOVES, A, B), delete(MOVES, B)],
        ),
    ],
)
def test_the_net_effect_of(changes: list[Change], expected: list[Change]) -> None:
    assert net(*changes) == expected


def test_two_keys_swapped_are_not_collapsed() -> None:
    """The second update finds another row at key 2 than the first one left: what it was would be lost."""
    one, two = row(1, "one"), row(2, "two")
    assert net(update(ITEMS, one, row(2, "one")), update(ITEMS, two, row(1, "two"))) == [
        delete(ITEMS, one),
        insert(ITEMS, row(2, "one")),
        delete(ITEMS, two),
        insert(ITEMS, row(1, "two")),
    ]
    chain = [update(ITEMS, one, row(2, "one")), update(ITEMS, row(2, "one"), row(3, "one"))]
    assert net(*chain) == [delete(ITEMS, one), insert(ITEMS, row(3, "one"))]
    twice = [
        update(ITEMS, two, row(2, "b")),
        update(ITEMS, one, row(2, "one")),
        update(ITEMS, row(2, "b"), row(1, "b")),
    ]
    assert net(*twice)[:1] == twice[:1]


def test_updates_of_like_columns_stand_together() -> None:
    mixed = [update(ITEMS, row(i), row(i, "b") if i % 2 else row(i, "a", 9)) for i in range(6)]
    assert [c.after[0] for c in net(*mixed) if isinstance(c, RowChange) and c.after] == [0, 2, 4, 1, 3, 5]


def test_null_in_a_key_is_not_collapsed() -> None:
    loose = table("loose", column("k", TEXT, "TEXT"), ITEMS.columns[1])
    changes: list[Change] = [
        insert(loose, ("x", "a")),
        insert(loose, (None, "a")),
        insert(loose, (None, "b")),
        delete(loose, ("x", "a")),
    ]
    assert net(*changes) == changes


def test_a_table_that_was_altered_is_two_tables() -> None:
    wider = table("items", *ITEMS.columns, column("m", INTEGER, "int"))
    assert net(insert(ITEMS, A), update(wider, (*A, None), (*B, 5))) == [
        insert(ITEMS, A),
        update(wider, (*A, None), (*B, 5)),
    ]


def draw(rng: random.Random, column: Column) -> Value:
    return (
        rng.randrange(8)
        if column.name == "id"
        else rng.choice([None, "a", "b"])
        if column.name == "name"
        else rng.randrange(3)
    )


@pytest.mark.parametrize("seed", range(20))
def test_the_net_effect_ends_where_the_changes_end(seed: int) -> None:
    """Carried out on Python's own tables; at most one change per row, none of a row that ends as it was not there."""
    print(f"replay: -k test_the_net_effect_ends_where_the_changes_end[{seed}] seed={seed}")
    keyed = table("items", ID, *ITEMS.columns[1:])
    model = Model(seed, tables=[keyed, MOVES], value=draw)
    model.transaction(30)
    before = {name: list(rows) for name, rows in model.content.items()}
    changes = model.transaction(40)
    seen: list[Value] = []
    for change in net(*changes):
        assert isinstance(change, RowChange)
        rows = before[change.table.name]
        if change.table is keyed:
            seen.append((change.after or change.before or ())[0])
        if change.before is not None:
            rows.remove(change.before)
        if change.after is not None:
            rows.append(change.after)
    assert len(seen) == len(set(seen))
    assert {name: content(rows) for name, rows in before.items()} == {n: content(r) for n, r in model.content.items()}


def test_what_a_load_brings_is_cut_up_to_what_is_no_insert() -> None:
    """Several tables, batches of so many rows; the first change of another kind comes back, with all behind it."""
    rows = [row(n) for n in range(BATCH_ROWS + 1)]
    changes: list[Change] = [
        *[insert(ITEMS, one) for one in rows],
        insert(MOVES, A),
        insert(ITEMS, A),
        delete(ITEMS, A),
        DDL,
    ]

    def all_of_it() -> Iterator[Batch | list[Change]]:
        rest = yield from batch_inserts(iter(changes), lambda table, seqno: BINDINGS[table], Seqno(0))
        yield list(rest)

    *found, rest = all_of_it()
    assert rest == [delete(ITEMS, A), DDL]
    batches = [one for one in found if isinstance(one, Batch)]
    assert [len(one.rows) for one in batches] == [BATCH_ROWS, 1, 1, 1]
    assert [one.form for one in batches] == [BINDINGS[table].insert for table in (ITEMS, ITEMS, MOVES, ITEMS)]
    assert [each for one in batches for each in one.rows] == [*rows, A, A]


def test_large_rows_of_a_load_are_not_held() -> None:
    large = "x" * (BATCH_BYTES // 2)
    changes = iter([insert(MOVES, row(n, large)) for n in range(5)])
    found = list(batch_inserts(changes, lambda table, seqno: BINDINGS[table], Seqno(0)))
    assert [(len(one.rows), one.bytes) for one in found] == [(2, BATCH_BYTES), (2, BATCH_BYTES), (1, BATCH_BYTES // 2)]


def test_a_form_says_what_it_does() -> None:
    form, _ = BINDINGS[ITEMS].place(insert(ITEMS, A))
    assert isinstance(form, Form)
    assert form.bind([A, (2, 'q"\\', None)]) == ["{1,2}".replace(",", ", "), '{"a","q\\"\\\\"}', "{1, NULL}"]
