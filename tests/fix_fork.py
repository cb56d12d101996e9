"""A forked child that does its part, and whose failure is the test's."""

from __future__ import annotations

import os
import threading
import traceback
from collections.abc import Callable


def in_child(act: Callable[[], None], *, within_s: float = 30.0) -> None:
    """Run `act` in a forked child, and fail with what it raised, or for hanging."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            act()
        except BaseException:
            os.write(writing, traceback.format_exc().encode()[-60_000:])
        finally:
            os._exit(0)
    os.close(writing)
    ended = threading.Event()

    def end() -> None:
        if not ended.wait(within_s):
            os.kill(child, 9)

    watchdog = threading.Thread(target=end)
    watchdog.start()
    told = b""
    while part := os.read(reading, 65_536):
        told += part
    os.close(reading)
    _, status = os.waitpid(child, 0)
    ended.set()
    watchdog.join()
    assert not told, told.decode()
    assert status == 0, f"the child ended by {status}: it hung"
