"""Whether a configuration's source and target are two databases, as far as that is known before either is opened."""

from __future__ import annotations

from tranlog.errors import ConfigError
from tranlog.service.config.config import Config
from tranlog.source.kinds import source_kind
from tranlog.target.options import identity


def check_apart(config: Config) -> None:
    """Raise ConfigError where source and target are one file: what is applied would be captured again.

    A server may hold both, as two of its databases.
    """
    source, target = config.source, config.target
    if source is None or target is None or source.kind != target.kind or not target.in_file:
        return
    if source_kind(source.kind).identity(source) == identity(target):
        raise ConfigError(option="target.path", value=target.path, why="it is the source; name another database")
