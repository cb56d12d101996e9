"""Why a process ended: its last error, kept beside its socket for whoever asks afterwards.

Owns the file, `control/.error-NAME` of the log's folder or of the user's; docs/control.md describes it. A pipeline's
error is kept at its target too, by its driver, where the target can still be written. The hard idea: a file like this
must never be in the way, so one that cannot be written or read is none.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

import msgspec

from tranlog.clock import SystemClock
from tranlog.errors import LogLockedError, PipelineHeldError, TranlogError
from tranlog.pipeline.rules.progress import LastError
from tranlog.service.process.sockets import runtime_dir, socket_paths


def _files(log_dir: str, name: str) -> list[str]:
    paths = map(os.path.split, socket_paths(log_dir, name, runtime_dir=runtime_dir()))
    return [os.path.join(folder, f".error-{file}") for folder, file in paths]


def last_error(log_dir: str, name: str) -> LastError | None:
    """Return why the process of this name ended last, None where it was by no error or another has begun."""
    for file in _files(log_dir, name):
        with contextlib.suppress(OSError, msgspec.DecodeError), open(file, "rb") as stream:
            return msgspec.json.decode(stream.read(), type=LastError)
    return None


def keep_error(log_dir: str, name: str, error: TranlogError) -> None:
    """Keep an error, in the first place that can be written."""
    if not os.path.isdir(log_dir):
        return
    told = msgspec.json.encode(LastError.of(error, at_ms=SystemClock().now_ms()))
    for file in _files(log_dir, name):
        with contextlib.suppress(OSError):
            os.makedirs(os.path.dirname(file), mode=0o700, exist_ok=True)
            with open(f"{file}.new", "wb") as stream:
                stream.write(told)
            os.replace(f"{file}.new", file)
            return


@contextlib.contextmanager
def keeping_error(log_dir: str, name: str) -> Iterator[None]:
    """Keep the error that ends the block, as that of a process of this name.

    One that says that another process is at work is not kept: the name is that one's.
    """
    try:
        yield
    except (LogLockedError, PipelineHeldError):
        raise
    except TranlogError as exc:
        keep_error(log_dir, name, exc)
        raise


def forget_error(log_dir: str, name: str) -> None:
    """Forget the error of the run before: another has begun."""
    for file in _files(log_dir, name):
        with contextlib.suppress(OSError):
            os.unlink(file)
