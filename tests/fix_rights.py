"""A file or folder that the program under test may not write, also where the tests run as root."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

NOBODY = 65534


@contextmanager
def without_rights(path: Path) -> Iterator[None]:
    """Leave a file or folder to others, whose rights are not ours, also where we are root."""
    before, user = path.stat().st_mode, os.geteuid()
    path.chmod(0o555 if path.is_dir() else 0o444)
    if user == 0:
        os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(user)
        path.chmod(before)
