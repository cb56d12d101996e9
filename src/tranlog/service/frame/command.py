"""How a command starts and ends: arguments, diagnostics, signals, progress, exit code. Shared by `tranlog` and `thl`.

Owns the frame around every command; what a command does is in `cli` and `thl`. The hard idea: results go to stdout
and everything else to stderr, so that a pipe gets nothing but results, whatever else has to be said.
"""

from __future__ import annotations

import importlib.metadata
import logging
import os
import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from types import FrameType
from typing import Annotated, Any, Final

import typer
from typer.core import TyperCommand, TyperGroup

from tranlog.service.frame.diagnostics import LOG_OPTIONS, lines_are_json
from tranlog.service.frame.exits import (
    ExitCode,
    ReaderGone,
    error_json,
    error_line,
    error_trace,
    exit_code_of,
    json_line,
)
from tranlog.service.frame.progress import Progress

logger = logging.getLogger(__name__)

HELP_NAMES: Final = {"help_option_names": ["-h", "-help", "--help"]}
GLOBAL_FLAGS: Final = ("--debug", "--verbose")


def flag(name: str, text: str, **more: Any) -> Any:
    """Return an option by its help, spelled with two dashes and with one; `name` is how errors spell it first."""
    other = name[1:] if name.startswith("--") else f"-{name}"
    return typer.Option(name, other, help=text, **more)


def option(name: str, metavar: str | None, text: str, **more: Any) -> Any:
    """Return an option that takes a value; as `flag`."""
    return flag(name, text, metavar=metavar, **more)


Debug = Annotated[bool, typer.Option("--debug", help="Show all diagnostics, and the traceback of an error.")]
Verbose = Annotated[bool, typer.Option("--verbose", help="Show diagnostics on stderr.")]
AsJson = Annotated[bool, flag("--json", "Print one line of JSON; errors too, on stderr.")]
Yes = Annotated[bool, typer.Option("-y", "--yes", help="Do not ask.")]


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"tranlog {importlib.metadata.version('tranlog')}")
        raise typer.Exit


Version = Annotated[
    bool, typer.Option("--version", is_eager=True, callback=_print_version, help="Print the version, and end.")
]


class _HelpInOrder:
    """Names the options of help in the order in which we give them; the library takes them from a set."""

    def get_help_option_names(self, ctx: Any) -> list[str]:
        left = super().get_help_option_names(ctx)  # type: ignore[misc]
        return [name for name in ctx.help_option_names if name in left]


class Command(_HelpInOrder, TyperCommand):
    """One command."""


class Commands(_HelpInOrder, TyperGroup):
    """The commands of one program. A closed stdout ends them as what it is, not as an error of theirs."""

    def invoke(self, ctx: Any) -> Any:
        try:
            outcome = super().invoke(ctx)
            sys.stdout.flush()
            return outcome
        except BrokenPipeError as exc:
            raise ReaderGone from exc


class App(typer.Typer):
    """A program whose commands are ours."""

    def command(self, *arguments: Any, **options: Any) -> Any:
        return super().command(*arguments, **{"cls": Command, **options})


def new_app(**options: Any) -> typer.Typer:
    """Return an empty program with our way of help: plain text, no colours, examples kept line by line.

    Without a command it shows its help, as bad usage; a program with options in front has a callback of its own.
    """
    app = App(
        cls=Commands,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings=HELP_NAMES,
        **options,
    )
    app.callback()(require_command)
    return app


def require_command(ctx: typer.Context) -> None:
    """Show the help, as bad usage, when a program was called without a command."""
    if ctx.invoked_subcommand is None:
        print(ctx.get_help(), file=sys.stderr)
        raise typer.Exit(ExitCode.USAGE)


def run_app(
    app: typer.Typer,
    arguments: Sequence[str] | None,
    *,
    prog: str,
    hoisted: Sequence[str],
    lowered: Sequence[str] = (),
) -> int:
    """Run one command and return its exit code; whatever goes wrong becomes one line on stderr.

    `hoisted` names options with a value that belong before the command; they, `--debug` and `--verbose` are
    accepted after it too. `lowered` names those that belong after it and are accepted before.
    """
    _open_streams()
    given = list(sys.argv[1:] if arguments is None else arguments)
    hoisted = (*hoisted, *LOG_OPTIONS)
    words = lower(hoist(given, hoisted, GLOBAL_FLAGS), lowered, passed=hoisted)
    if words[:1] == ["help"]:  # as the ancestor's commands have it
        words = [*words[1:], "--help"]
    reconfigure = getattr(sys.stdout, "reconfigure", None)
    if reconfigure is not None:
        reconfigure(errors="backslashreplace")  # a terminal that cannot show a letter must not end a listing
    try:
        outcome = typer.main.get_command(app).main(args=words, prog_name=prog, standalone_mode=False)
        if outcome == ExitCode.INTERRUPTED:
            raise KeyboardInterrupt  # which typer takes for an exit
    except (Exception, KeyboardInterrupt) as exc:
        code = exit_code_of(exc)
        if code is ExitCode.READER_GONE:
            _let_go_of_stdout()
            return code
        error = _whole_word_error(exc, words)
        as_json = "--json" in words or "-json" in words or lines_are_json()
        called = called_command(typer.main.get_command(app), words, prog)
        print((error_json if as_json else error_line)(error, prog=prog, command=called), file=sys.stderr)
        if "--debug" in words:
            print(error_trace(exc), file=sys.stderr, end="")
        return code
    return int(outcome or 0)


def called_command(program: object, words: Sequence[str], prog: str) -> str:
    """Return the program's name with the command, and the command of that one, which some words call. Pure."""
    for word in words:
        commands = getattr(program, "commands", {})
        if word in commands:
            program, prog = commands[word], f"{prog} {word}"
    return prog


def hoist(arguments: Sequence[str], valued: Sequence[str], flags: Sequence[str]) -> list[str]:
    """Move options that belong before a command there, from wherever they stand. Pure.

    Shape: `list -dir x -seqno 1` becomes `-dir x list -seqno 1`; nothing after `--` is moved.
    """
    front: list[str] = []
    rest: list[str] = []
    words = list(arguments)
    while words:
        word = words.pop(0)
        name, equals, _ = word.partition("=")
        if word == "--":
            rest += [word, *words]
            break
        if word in flags or (equals and name in valued):
            front.append(word)
        elif word in valued:
            front += [word, *words[:1]]
            del words[:1]
        else:
            rest.append(word)
    return front + rest


def lower(arguments: Sequence[str], valued: Sequence[str], *, passed: Sequence[str]) -> list[str]:
    """Move options that belong after a command there, from before it. Pure.

    `valued` are these, `passed` those with a value that stay in front. Shape: `-host x status -name stores` becomes
    `status -name stores -host x`; what stands after `--` stays last.
    """
    front: list[str] = []
    moved: list[str] = []
    rest = list(arguments)
    while rest and rest[0].startswith("-") and rest[0] != "--":
        name, equals, _ = rest[0].partition("=")
        count = 2 if name in (*valued, *passed) and not equals else 1
        (moved if name in valued else front).extend(rest[:count])
        del rest[:count]
    end = rest.index("--") if "--" in rest else len(rest)
    return [*front, *rest[:end], *moved, *rest[end:]]


def one_of(*values: str) -> Callable[[str], list[str]]:
    """Return what completes one of some values."""

    def complete(incomplete: str) -> list[str]:
        return [one for one in values if one.startswith(incomplete)]

    return complete


def complete_file(incomplete: str) -> list[str]:
    """Complete a configuration file of this folder."""
    return sorted(name for name in os.listdir() if name.endswith(".toml") and name.startswith(incomplete))


def complete_service(incomplete: str) -> list[str]:
    """Complete the name of a service that has a file of its own in this folder."""
    return [name.removesuffix(".toml") for name in complete_file(incomplete)]


def log_of(ctx: typer.Context) -> str:
    """Return the log directory that `thl`'s options before the command name. Raises ConfigError."""
    from tranlog.service.config.config import find_log  # with it comes the pipeline: `--help` can do without

    if not isinstance(ctx.obj, tuple):
        raise typer.BadParameter("goes with list, tail, info and index", param_hint="-node")
    service, conf, directory = ctx.obj
    if directory is not None and service is None and conf is None:
        return str(directory)
    return find_log(conf=conf, service=service, directory=directory)


def print_json(result: object) -> None:
    """Print one result as one line of JSON."""
    print(json_line(result))


def answer(result: object, lines: str | Iterable[str], as_json: bool) -> None:
    """Print what a command found: the result as one line of JSON, or the lines that say it to people."""
    if as_json:
        print_json(result)
        return
    for line in (lines,) if isinstance(lines, str) else lines:
        print(line)


def say(text: str) -> None:
    """Tell the operator something that is no result."""
    print(text, file=sys.stderr, flush=True)


def confirm(question: str) -> None:
    """Ask on stderr for a `y`; raise typer.Abort for anything else, an end of the input included."""
    if Progress.current is not None:
        Progress.current.hide()
    print(f"{question} [y/N] ", file=sys.stderr, end="", flush=True)
    answer = sys.stdin.readline()
    if not sys.stdin.isatty():
        say("")  # nobody's Enter has ended the line
    if answer.strip().lower() not in ("y", "yes"):
        raise typer.Abort


@contextmanager
def stop_signals(stop: Callable[[], None], *, quiet: bool = False) -> Iterator[None]:
    """Call `stop` at the first SIGTERM or SIGINT, and say so unless `quiet`; a second one ends the process at once.

    The same for SIGHUP, since the terminal is gone, unless it is ignored as under nohup. An exception out of a handler
    could come where a lock was just taken and nobody would give it back.
    Threads: the main one only, as Python's signals demand.
    """

    def on_signal(number: int, frame: FrameType | None) -> None:
        for one in before:
            signal.signal(one, signal.SIG_DFL)
        if not quiet:
            logger.info("Stopping cleanly; once more stops at once. signal=%s", signal.Signals(number).name)
        stop()

    before = {one: signal.getsignal(one) for one in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)}
    if before[signal.SIGHUP] is signal.SIG_IGN:
        del before[signal.SIGHUP]
    for one in before:
        signal.signal(one, on_signal)
    try:
        yield
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)


class UnknownOption(typer.TyperException):
    """An option that does not exist, by the whole word that was typed."""

    def __init__(self, word: str, near: Sequence[str], ctx: object) -> None:
        hint = f", perhaps {' or '.join(near)}" if near else ""
        super().__init__(f"no such option: {word}{hint}")
        self.ctx = ctx


def _whole_word_error(error: BaseException, words: Sequence[str]) -> BaseException:
    """Replace the parser's complaint about `-s` by one about the `-sqno` that was typed."""
    name = getattr(error, "option_name", None)
    ctx = getattr(error, "ctx", None)
    if not isinstance(error, typer.TyperException) or name is None or ctx is None:
        return error
    if not hasattr(error, "possibilities"):  # it exists and lacks its value
        return error
    word = next((w for w in words if w == name or (len(name) == 2 and name[0] == "-" and w.startswith(name))), name)
    known = [option for parameter in ctx.command.params for option in parameter.opts]
    return UnknownOption(word, get_close_matches(word, known, n=2), ctx)


def _open_streams() -> None:
    """Point what the caller has closed nowhere, in this order, so that no file of a log gets its number."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_RDWR), mode))


def _let_go_of_stdout() -> None:
    """Point stdout nowhere, so that the interpreter's last flush does not complain."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
