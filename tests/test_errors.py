"""`errors`: every exception carries typed fields, says them, says what to do next, and survives pickling.

Proves: "Fields are typed and set in the constructor; the message is built from them".
Spark pickles an exception to bring it from a task to the driver.
"""

from __future__ import annotations

import dataclasses
import inspect
import pickle
import re
from typing import Any

import pytest

from tranlog import errors
from tranlog.errors import LogClosedError, PayloadError, TranlogError
from tranlog.ids import Epoch, Gtid, Seqno

KINDS = [kind for _, kind in inspect.getmembers(errors, inspect.isclass) if issubclass(kind, TranlogError)]
CONCRETE = [kind for kind in KINDS if "__dataclass_fields__" in vars(kind)]
FAMILIES = [kind for kind in KINDS if kind not in CONCRETE]

EXAMPLES: dict[str, Any] = {
    "int": 4711,
    "int | None": 4711,
    "str": "some text",
    "str | None": "some text",
    "tuple[str, ...]": ("one name", "another"),
    "object": ["a", 1],
    "Gtid": Gtid(Epoch(3), Seqno(4711)),
}
REMEDIES = {"SourceSetupError", "UnsupportedEventError", "EngineError"}
"""These end with what the caller found out to be the remedy."""

# What the last sentence of a message starts with: something to do.
IMPERATIVES = (
    "Append|Apply|Change|Check|Close|Correct|Create|Fix|Free|Install|Move|Name|Open|Restore|Run|See|Set|Start|Stop|Take|"
    "Undo|Use|Write|change|check|close|name|open|restore|start|stop|take"
)


def example(kind: type[TranlogError]) -> TranlogError:
    """Build an error with a value in each field."""
    fields = dataclasses.fields(kind)  # type: ignore[arg-type]
    given = {field.name: EXAMPLES[str(field.type)] for field in fields}
    for name in ("why", "remedy", "path", "holder"):
        if name in given:
            given[name] = f"Fix the {name}" if name == "remedy" else f"a word for {name}"
    return kind(**given)


def shown(value: object) -> str:
    if isinstance(value, tuple):
        return ", ".join(value)
    return str(value) if not isinstance(value, list) else repr(value)


def test_all_are_found() -> None:
    assert len(CONCRETE) >= 28
    assert {kind.__name__ for kind in FAMILIES} == {
        "LogError",
        "PipelineError",
        "QueueError",
        "ReplicationError",
        "SourceError",
        "TargetError",
        "TranlogError",
    }


@pytest.mark.parametrize("kind", KINDS)
def test_each_is_in_one_family_and_says_when(kind: type[TranlogError]) -> None:
    families = [family for family in FAMILIES if family is not TranlogError and issubclass(kind, family)]
    assert len(families) == (0 if kind in (TranlogError, errors.ConfigError) else 1)
    assert kind.__doc__ is not None
    assert not kind.__doc__.startswith(kind.__name__ + "(")  # what dataclasses write where nobody has


@pytest.mark.parametrize("kind", CONCRETE)
def test_each_says_its_fields(kind: type[TranlogError]) -> None:
    error = example(kind)
    for name, value in vars(error).items():
        assert shown(value) in str(error), name


@pytest.mark.parametrize("kind", CONCRETE)
def test_each_message_ends_with_what_to_do(kind: type[TranlogError]) -> None:
    message = str(example(kind))
    last = re.split(r"[.;] (?=\w)", message)
    assert any(re.match(rf"(?:{IMPERATIVES})\b", sentence) for sentence in last[-2:]), message
    if kind.__name__ in REMEDIES:
        assert message.endswith("Fix the remedy")


@pytest.mark.parametrize("kind", CONCRETE)
def test_each_survives_pickling(kind: type[TranlogError]) -> None:
    error = example(kind)
    error.add_note("a note")
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is kind
    assert vars(copy) == vars(error)
    assert (str(copy), copy.args, repr(copy)) == (str(error), error.args, repr(error))


@pytest.mark.parametrize("kind", FAMILIES)
def test_a_family_can_be_raised_with_a_text_and_keeps_it(kind: type[TranlogError]) -> None:
    assert str(pickle.loads(pickle.dumps(kind("a text")))) == "a text"


def test_a_closed_log_says_so_however_it_is_raised() -> None:
    assert str(LogClosedError()) == "the log is closed: it was closed. Open it again: what was durable is still there"
    for error in (LogClosedError("a sync failed"), LogClosedError(why="a sync failed")):
        assert "a sync failed" in str(error) == str(pickle.loads(pickle.dumps(error)))


def test_two_errors_with_equal_fields_are_two() -> None:
    """They are told apart and hashed by identity, as exceptions are: traceback and cause belong to one of them."""
    one, other = PayloadError(why="x", seqno=1), PayloadError(why="x", seqno=1)
    assert one != other
    assert len({one, other}) == 2


def test_an_absent_seqno_is_not_printed() -> None:
    assert "None" not in str(PayloadError(why="x"))
    assert "None" not in str(errors.TargetTableError(table="t", why="x"))
    assert "None" not in str(errors.CorruptRecordError(segment="s", offset=0, seqno=None, why="x"))
    assert "None" not in str(errors.ConfigError(option="o", value=None, why="x"))
