"""Which log `thl` is to show: of a directory, or of a node of a group.

Owns the way from the options before the command to an open log.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

import typer

from tranlog.codecs.shown import NativeShown, ShownLog, open_log
from tranlog.replication.acting.remote_log import open_remote
from tranlog.service.frame.command import log_of
from tranlog.tls import group_side


@dataclass(frozen=True, slots=True)
class FarLog:
    """The log of a node: where, and for TLS the authority and the own certificate with its key."""

    url: str
    authority: str | None
    certificate: str | None


def open_shown(ctx: typer.Context, *, checksum: bool = True) -> ShownLog:
    """Open the log. Raises as `open_log` and `open_remote`."""
    where = ctx.obj
    if not isinstance(where, FarLog):
        return open_log(os.path.abspath(log_of(ctx)), checksum=checksum)
    tls = None
    if where.authority is not None and where.certificate is not None:
        tls = group_side(where.authority, where.certificate)
    return NativeShown(open_remote(where.url, tls=tls))
