"""From what went wrong to an exit code and one line: the one place that decides how a command ends.

Owns the exit codes and the words on stderr. What happened and what to do next is the error's own message. The hard
idea: a script that runs us must be able to tell "fix the environment and start again" (4) from "look at the data first"
(3) without reading a message, so every error of the tree has its place in one table, and a test checks that.
"""

from __future__ import annotations

import enum
import json
import traceback
from collections.abc import Mapping
from typing import Final

import msgspec
import typer

from tranlog import errors
from tranlog.errors import TranlogError
from tranlog.listing import printable


class ExitCode(enum.IntEnum):
    """How a command ended. 0 to 4 are the contract; the others are the shell's customary ones."""

    DONE = 0
    CHECK_FAILED = 1
    """A requested check failed: tables differ, a seqno or a queue does not exist, the operator declined."""
    USAGE = 2
    """The command line or the configuration."""
    DATA = 3
    """Damaged or inconsistent data, or a conflict at the target: look before you start again."""
    SURROUNDINGS = 4
    """Lock held, disk full, server unreachable, no Java: fix it and start again."""
    BUG = 70
    """An error that tranlog did not foresee (EX_SOFTWARE): please report it."""
    INTERRUPTED = 130
    """Ctrl-C in a command that has nothing to finish."""
    READER_GONE = 141
    """The reader of our output went away, as in `thl list | head`."""


class ReaderGone(Exception):
    """Standard output was closed by whoever read it."""


class Told(Exception):
    """An error that a running pipeline gave in answer to a command: its kind, its words, its exit code."""

    def __init__(self, kind: str, message: str, code: int) -> None:
        super().__init__(message)
        self.kind = kind
        self.code = code


_ERRORS: Final = {
    ExitCode.CHECK_FAILED: "UnknownQueueError",
    ExitCode.USAGE: "ConfigError",
    ExitCode.DATA: """
        TranlogError LogError CorruptRecordError AppendOrderError RawRecordError PurgeRangeError
        ConversionRefusedError SegmentGoneError LogReplacedError PurgedError AbandonedError IndexCutError
        IndexDamagedError RollbackError RepairRefusedError RecordLimitError PayloadError NotInLogError
        SourceError PositionLostError SourceClaimedError UnsupportedEventError UnsupportedTypeError
        ForeignWriterError TargetError ConflictError TargetTableError DdlStopError TargetPositionError
        TargetAheadError QueueError StoreDamagedError CatalogueError DeclaredOtherwiseError NotHeldError
        TransactionStateError ReplicationError PacketError GroupFileError CommitRefusedError FilterError
    """,
    ExitCode.SURROUNDINGS: """
        LogMissingError StoreMissingError LogUnreadableError LogCodecError LogVersionError ForeignHistoryError
        NativeLogError MixedCodecsError ConversionTargetError HoldError SegmentEmptyError LogLockedError LogClosedError
        MemberLogError NotPrimaryError DiskFullError DiskFailedError SpillFailedError PurgeFailedError
        LibraryMissingError SourceSetupError SourceUnavailableError TargetUnavailableError TransientTargetError
        TransientRoomError CatalogueAwayError HandshakeError NoPrimaryError NoNodeError GroupOrderError PipelineError
        ReplacedError PipelineHeldError StateError ControlError EngineError
    """,
}
EXIT_CODES: Final[Mapping[type[TranlogError], ExitCode]] = {
    getattr(errors, name): code for code, names in _ERRORS.items() for name in names.split()
}
"""The exit code of each error; one that is not listed has its nearest ancestor's."""


def exit_code_of(error: BaseException) -> ExitCode:
    """Return the exit code of whatever ended a command."""
    match error:
        case TranlogError():
            return next(EXIT_CODES[kind] for kind in type(error).__mro__ if kind in EXIT_CODES)
        case Told(code=code):
            return ExitCode(code) if code in list(ExitCode) else ExitCode.BUG
        case typer.TyperException():
            return ExitCode.USAGE
        case typer.Abort():
            return ExitCode.CHECK_FAILED
        case KeyboardInterrupt():
            return ExitCode.INTERRUPTED
        case ReaderGone() | BrokenPipeError():
            return ExitCode.READER_GONE
        case OSError():
            return ExitCode.SURROUNDINGS
        case _:
            return ExitCode.BUG


def error_line(error: BaseException, *, prog: str, command: str = "") -> str:
    """Return what stderr says about the error: one line, what happened and what to do next.

    `command` is the program with the command that was called, for an error that does not know it.
    Shape: no line breaks; control characters of names and values that came from outside are escaped.
    """
    return f"{prog}: {_one_line(_message(error, command or prog))}"


def error_json(error: BaseException, *, prog: str, command: str = "") -> str:
    """Return the error as one line of JSON: `{"error": {"type", "exit_code", "message", and its own fields}}`.

    `command` as in `error_line`.
    """
    fields = dict(vars(error)) if isinstance(error, TranlogError) else {}
    told = {
        "type": error.kind if isinstance(error, Told) else type(error).__name__,
        "exit_code": int(exit_code_of(error)),
        "message": _message(error, command or prog),
        **{name: _plain(value) for name, value in fields.items() if not name.startswith("_")},
    }
    return json_line({"error": told})


def json_line(value: object) -> str:
    """Return a value as one line of JSON, also where it names a file by bytes that are no UTF-8."""
    try:
        return msgspec.json.encode(value).decode()
    except UnicodeEncodeError:
        return json.dumps(msgspec.to_builtins(value), separators=(",", ":"))


def error_trace(error: BaseException) -> str:
    """Return the traceback with its causes, for `--debug`."""
    return "".join(traceback.format_exception(error)).encode(errors="backslashreplace").decode()


def _message(error: BaseException, command: str) -> str:
    match error:
        case TranlogError():
            return str(error) or type(error).__name__
        case Told():
            return str(error)
        case typer.TyperException():
            return f"{_usage(error)}. Try `{_command_path(error, command)} --help`"
        case typer.Abort():
            return "declined; nothing was changed"
        case KeyboardInterrupt():
            return "interrupted"
        case OSError():
            where = "" if error.filename is None else f"{error.filename}: "
            return f"{where}{error.strerror or error}"
        case _:
            what = str(error)
            return (
                f"unexpected {type(error).__name__}{': ' if what else ''}{what}; this is a defect of tranlog. "
                "Run it again with --debug and report the traceback"
            )


def _usage(error: typer.TyperException) -> str:
    text = error.format_message().rstrip(".")
    return f"{text[:1].lower()}{text[1:]}"


def _command_path(error: typer.TyperException, command: str) -> str:
    return getattr(getattr(error, "ctx", None), "command_path", command)


def _one_line(text: str) -> str:
    return printable(" ".join(part for part in (line.strip() for line in text.splitlines()) if part))


def _plain(value: object) -> object:
    if isinstance(value, tuple):
        return [_plain(one) for one in value]
    return value if isinstance(value, str | int | float | bool | None) else str(value)
