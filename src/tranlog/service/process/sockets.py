"""Where a running process listens: its unix socket, beside the log that it works on.

Owns the socket's name, and making it. The hard idea: a unix socket is a name in a folder, which a killed process leaves
behind. So the name is given to a socket that listens already, by a rename that replaces what was there.
"""

from __future__ import annotations

import contextlib
import os
import socket
import zlib
from collections.abc import Iterator
from typing import Final

CAPTURE_NAME: Final = ".capture"
"""Under this name whoever captures into the log listens, beside the pipelines; none of them may begin with a dot."""
STORE_NAME: Final = "store"
"""Under this name whoever has a message store open listens, in the store's own folder."""
NODE_NAME: Final = ".node"
"""Under this name the node of a group listens, beside its log."""
_FOLDER: Final = "control"
_SUN_PATH_MAX: Final = 107


def runtime_dir() -> str | None:
    """Return the user's folder for sockets, where the system gives one."""
    found = os.environ.get("XDG_RUNTIME_DIR")
    return found if found and os.path.isdir(found) else None


def socket_paths(log_dir: str, name: str, *, runtime_dir: str | None) -> list[str]:
    """Return where a pipeline's socket may be, the preferred place first: beside the log, else in `runtime_dir`.

    The second is for a log that its pipeline may only read, or whose file system knows no sockets.
    """
    log_dir = os.path.realpath(log_dir)
    paths = [os.path.join(log_dir, _FOLDER, name)]
    if runtime_dir:
        whose = format(zlib.crc32(log_dir.encode(errors="surrogateescape")), "08x")
        paths.append(os.path.join(runtime_dir, "tranlog", f"{whose}-{name}"))
    return paths


@contextlib.contextmanager
def short(path: str) -> Iterator[str]:
    """Name a path in so few bytes that a socket's address holds it: by its folder's descriptor where it is long."""
    if len(os.fsencode(path)) <= _SUN_PATH_MAX:
        yield path
        return
    folder = os.open(os.path.dirname(path), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/{os.path.basename(path)}"
    finally:
        os.close(folder)


def listen_at(path: str) -> socket.socket:
    """Return a socket that listens at a path, mode 0600; whatever was there is replaced. Raises OSError."""
    folder = os.path.dirname(path)
    waiting = os.path.join(folder, f".{os.getpid()}-{os.path.basename(path)}")
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        os.makedirs(folder, mode=0o700, exist_ok=True)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(waiting)
        with short(waiting) as name:
            listener.bind(name)
        os.chmod(waiting, 0o600)
        listener.listen()
        os.rename(waiting, path)  # nobody ever sees it before it listens, or with another mode
    except BaseException:
        listener.close()
        with contextlib.suppress(OSError):
            os.unlink(waiting)
        raise
    return listener
