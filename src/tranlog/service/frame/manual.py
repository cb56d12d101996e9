"""Manual pages, made from the same words that `--help` prints. Decides, does not act.

Owns the form of `thl.1` and `tranlog.1`. The hard idea: a page that somebody writes by hand is wrong after the next
option, so it contains only what the commands say of themselves, and a test compares the files with this.

Source: man-pages(7) for the order of the sections.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import typer

from tranlog.service.frame.exits import ExitCode

_EXIT_CODES: Final = (
    (ExitCode.DONE, "Done."),
    (ExitCode.CHECK_FAILED, "A requested check failed: a seqno does not exist, tables differ, you declined."),
    (ExitCode.USAGE, "The command line or the configuration."),
    (ExitCode.DATA, "Damaged or inconsistent data, or a conflict at the target: look before you start again."),
    (ExitCode.SURROUNDINGS, "Lock held, disk full, server unreachable, no Java: fix it and start again."),
    (ExitCode.BUG, "An error that tranlog did not foresee: please report it."),
    (ExitCode.INTERRUPTED, "Ctrl\\-C in a command that has nothing to finish."),
    (ExitCode.READER_GONE, "The reader of the output went away."),
)


def man_page(app: typer.Typer, *, prog: str, summary: str) -> str:
    """Return the page of a program, as roff for man(7)."""
    group: Any = typer.main.get_command(app)
    return "\n".join(_page(group, prog, summary)) + "\n"


def _page(group: Any, prog: str, summary: str) -> Iterator[str]:
    yield f'.TH {prog.upper()} 1 "" "tranlog" "tranlog manual"'
    yield ".SH NAME"
    yield f"{prog} \\- {_text(summary)}"
    yield ".SH SYNOPSIS"
    yield f".B {prog}"
    yield "[options] command [command options]"
    yield ".SH DESCRIPTION"
    yield from _help(group.help or "")
    yield ".SH OPTIONS"
    yield from _options(group.params)
    yield ".SH COMMANDS"
    for words, command in _commands(group, ()):
        yield f".SS {_text(' '.join(words))}"
        yield f".B {_text(' '.join((prog, *words)))}"
        yield _usage(command.params)
        yield ".PP"
        yield from _help(command.help or "")
        yield from _options(command.params)
    yield ".SH EXIT STATUS"
    for code, meaning in _EXIT_CODES:
        yield ".TP"
        yield f".B {int(code)}"
        yield meaning


def _commands(group: Any, above: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield each command with its words, those of groups one by one, without the hidden ones."""
    for name, command in group.commands.items():
        if command.hidden:
            continue
        if hasattr(command, "commands"):
            yield from _commands(command, (*above, name))
        else:
            yield (*above, name), command


def _arguments(params: list[Any]) -> list[Any]:
    return [one for one in params if one.param_type_name == "argument"]


def _shown_options(params: list[Any]) -> list[Any]:
    return [one for one in params if one.param_type_name == "option" and not one.hidden]


def _usage(params: list[Any]) -> str:
    names = [f".I {_text(_placeholder(one))}" for one in _arguments(params)]
    return "\n".join(["[options]", *names])


def _placeholder(param: Any) -> str:
    return str(param.metavar or param.name.upper())


def _help(text: str) -> Iterator[str]:
    """Yield a docstring: paragraphs flow, examples stand line by line."""
    for paragraph in text.replace("\b\n", "\b").split("\n\n"):
        lines = paragraph.strip("\n").split("\n")
        if lines[0].startswith("\b"):
            first = lines[0][1:]
            yield ".PP"
            yield _text(first.strip())
            yield ".nf"
            yield ".RS 2"
            for line in lines[1:]:
                yield _text(line.strip())
            yield ".RE"
            yield ".fi"
            continue
        yield ".PP"
        yield _text(" ".join(line.strip() for line in lines))


def _options(params: list[Any]) -> Iterator[str]:
    for one in _arguments(params):
        yield ".TP"
        yield f".I {_text(_placeholder(one))}"
        yield _text(getattr(one, "help", None) or "")
    for one in _shown_options(params):
        names = ", ".join(f"\\fB{_text(name)}\\fR" for name in (*one.opts, *one.secondary_opts))
        takes = "" if one.is_flag or one.count else f" \\fI{_text(_placeholder(one))}\\fR"
        yield ".TP"
        yield f"{names}{takes}"
        said = (one.help or "").strip()
        if one.show_default and one.default not in (None, False, "") and not one.is_flag:
            said += f" [default: {getattr(one.default, 'value', one.default)}]"
        yield _text(said)


def _text(text: str) -> str:
    """Return text that roff prints as it is."""
    escaped = text.replace("\\", "\\e").replace("-", "\\-")
    return f"\\&{escaped}" if escaped.startswith((".", "'")) else escaped
