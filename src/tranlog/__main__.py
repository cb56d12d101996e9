"""Where the commands `tranlog` and `thl` begin; `python -m tranlog` is the first, for a Python whose scripts are not on
the PATH.

What they do is imported here, which takes a second: a Ctrl-C then ends a command as a later one does.
"""

import sys

_INTERRUPTED = 130


def tranlog() -> int:
    """Run `tranlog` and return its exit code."""
    try:
        from tranlog.service.commands.cli import main
    except KeyboardInterrupt:
        return _interrupted("tranlog")
    return main()


def thl() -> int:
    """Run `thl` and return its exit code."""
    try:
        from tranlog.service.thl.thl import main
    except KeyboardInterrupt:
        return _interrupted("thl")
    return main()


def _interrupted(prog: str) -> int:
    print(f"{prog}: interrupted", file=sys.stderr)
    return _INTERRUPTED


if __name__ == "__main__":
    sys.exit(tranlog())
