"""How far a load is, in a line for people."""

from __future__ import annotations

from tranlog.capture.load_requests import LoadRequest
from tranlog.loads import ANY_PIPELINE


def load_text(request: LoadRequest) -> str:
    """Say in a line how far a load is, and for how long."""
    progress, order, whose = request.progress, request.order, f"load {request.load}"
    if request.pipeline != ANY_PIPELINE:
        whose += f" for pipeline {request.pipeline}"
    given_up = "".join([f"; {name} given up: {why}" for name, why in progress.given_up])
    paused = "paused, " if order.paused else ""
    if not progress.begun:
        return f"{whose}: {paused}waits for capture, which takes one load after another{given_up}"
    done = progress.tables - len(progress.left) - len(progress.given_up)
    text = f"{whose}: {paused}{max(done, 0)} of {progress.tables} tables, {progress.rows} rows"
    if request.rows_there:
        text += f" of about {request.rows_there}"
    if progress.left:
        text += ", at " + ".".join(progress.left[0])
    if not order.paused and request.rows_per_s:
        text += f", {request.rows_per_s:.0f} rows/s"
    if not order.paused and request.seconds_left is not None:
        text += f", about {request.seconds_left:.0f} s left"
    if order.rows_per_second:
        text += f", at most {order.rows_per_second} rows/s"
    if request.waits_for:
        text += f", waits for {request.waits_for}"
    return text + given_up
