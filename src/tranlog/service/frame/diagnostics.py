"""What a process says of itself on stderr: its log lines, for people or as JSON, at levels by module.

Owns the two forms and the options that choose. The modules log by the standard library: a fixed sentence, and after it
`key=%s` for each fact. The hard idea: that form is structure enough, so the sentence is the event's name and each key a
field of its own here, and nothing below knows how it is shown.

structlog is imported with the first line that is shown.
"""

from __future__ import annotations

import logging
import os
import re
import sys
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final, Literal, TextIO, TypeAlias

import typer

from tranlog.service.frame.exits import json_line

Form: TypeAlias = Literal["text", "json"]
LOG_OPTIONS: Final = ("--log-level", "--log-format")
LogLevel = Annotated[
    str | None,
    typer.Option(
        "--log-level",
        metavar="[MODULE=]LEVEL,…",
        envvar="TRANLOG_LOG_LEVEL",
        help="What to log: debug, info, warning, error; of one module, as tranlog.pipeline=debug.",
    ),
]
LogFormat = Annotated[
    Form,
    typer.Option("--log-format", envvar="TRANLOG_LOG_FORMAT", help="Log lines for people, or one of JSON each."),
]

_LEVELS: Final = {"": "warning", "tranlog.service": "info", "tranlog.pipeline.driving.operation": "info"}
"""What is logged where nothing else is asked for: troubles, and each change of state."""
_QUIET: Final = {"py4j": "warning", "pyspark": "warning", "asyncio": "error"}
"""Libraries; asyncio warns of each answer to a connection that is lost, and names none."""
_FIELD: Final = re.compile(r"(?:^|[\s,]+)(\w+)=(\S*%\S+)")
_ARGUMENT: Final = re.compile(r"%[-+ #0-9.]*[a-zA-Z]")


def show_diagnostics(*, debug: bool = False, verbose: bool = False, levels: str | None, form: Form) -> None:
    """Log to stderr from now on. Raises typer.BadParameter for what is no level."""
    wanted = {"": "debug" if debug else "info"} if debug or verbose else dict(_LEVELS)
    for part in filter(None, (levels or "").replace(" ", "").split(",")):
        module, _, level = part.rpartition("=")
        if level not in ("debug", "info", "warning", "error"):
            why = f"{part!r} is no LEVEL and no MODULE=LEVEL; a level is debug, info, warning or error"
            raise typer.BadParameter(why, param_hint="--log-level")
        wanted[module] = level
    root = logging.getLogger()
    for handler in [one for one in root.handlers if isinstance(one, _StderrHandler)]:
        root.removeHandler(handler)
        for module in handler.modules:
            logging.getLogger(module).setLevel(logging.NOTSET)
    for module, level in (_QUIET | wanted).items():
        logging.getLogger(module or None).setLevel(level.upper())
    root.addHandler(_StderrHandler(form, [one for one in wanted if one]))


def lines_are_json() -> bool:
    """Whether this process logs JSON, so that all that it says is to be."""
    return any(isinstance(one, _StderrHandler) and one.form == "json" for one in logging.getLogger().handlers)


class _StderrHandler(logging.StreamHandler[TextIO]):
    """Writes to what stderr is now, not to what it was when the handler was made."""

    def __init__(self, form: Form, modules: Sequence[str]) -> None:
        logging.Handler.__init__(self)
        self.form = form
        self.modules = modules

    @property
    def stream(self) -> TextIO:  # type: ignore[override]
        return sys.stderr

    def format(self, record: logging.LogRecord) -> str:
        if self.formatter is None:
            self.formatter = _formatter(self.form, colors=sys.stderr.isatty() and not os.environ.get("NO_COLOR"))
        return super().format(record)


def _formatter(form: Form, *, colors: bool) -> logging.Formatter:
    from structlog import dev, processors, stdlib  # a tenth of a second, for whoever has something to say

    render: Any
    if form == "json":
        render = [processors.format_exc_info, processors.JSONRenderer(serializer=lambda told, **_: json_line(told))]
    else:
        render = [dev.ConsoleRenderer(colors=colors, sort_keys=False, exception_formatter=dev.plain_traceback)]
    stamp = processors.TimeStamper(fmt="%Y-%m-%dT%H:%M:%S.%fZ", utc=True)
    return stdlib.ProcessorFormatter(
        foreign_pre_chain=[stdlib.add_log_level, _logger_name, stamp, _event],
        processors=[stdlib.ProcessorFormatter.remove_processors_meta, *render],
        use_get_message=False,
        pass_foreign_args=True,
    )


def _logger_name(logger: Any, method: str, told: Any) -> Any:
    told["logger"] = told["_record"].name
    return told


def _event(logger: Any, method: str, told: Any) -> Any:
    """Make the sentence the event, and what stands after it fields."""
    template, arguments = told.pop("event"), told.pop("positional_args", None) or ()
    told["event"], fields = split(template, arguments)
    return told | fields


def split(template: str, arguments: tuple[object, ...] | Mapping[str, object]) -> tuple[str, dict[str, object]]:
    """Return a log call's sentence and its fields. Pure.

    Shape: `"Purged. first=%s up_to=%d", "a", 5` is `Purged` and `{"first": "a", "up_to": 5}`. A call that has another
    form is all sentence.
    """
    first = _FIELD.search(template)
    if isinstance(arguments, Mapping) or len(_ARGUMENT.findall(template.replace("%%", ""))) != len(arguments):
        return str(template % arguments if arguments else template), {}
    at = len(template) if first is None else first.start()
    sentence, rest = template[:at].rstrip(" .,:"), list(arguments)

    def filled(part: str) -> object:
        count = len(_ARGUMENT.findall(part))
        taken = tuple(rest[:count])
        del rest[:count]
        return _plain(taken[0]) if part in ("%s", "%d") else part % taken if taken else part

    event = str(filled(sentence))
    return event, {name: filled(part) for name, part in _FIELD.findall(template[at:])}


def _plain(value: object) -> object:
    """Return a value that JSON has; a sequence as a list, everything else as its text."""
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    return value if type(value) in (str, int, float, bool, type(None)) else str(value)
