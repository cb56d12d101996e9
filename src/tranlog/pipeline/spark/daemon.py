"""The process from which Spark forks its Python workers, with all modules that a channel needs imported before.

Owns only those imports; the rest of the daemon is PySpark's. The hard idea: a forked worker has its modules already,
which saves the time to load them, and the memory as long as they are not written to. So nothing imported here may
start a thread or open a file, since these do not survive a fork.
"""

from __future__ import annotations

import gc
import importlib.util

import pyspark.daemon
import pyspark.worker

import tranlog.pipeline.applying.channel
import tranlog.pipeline.options
import tranlog.target.database  # noqa: F401

_DRIVERS = {"psycopg": "tranlog.target.postgres", "apsw": "tranlog.target.sqlite", "pymysql": "tranlog.target.mariadb"}
"""Libraries that may be missing, and the modules that need them."""


def main() -> None:
    """Import what is there, and serve as PySpark's own daemon does."""
    for library, module in _DRIVERS.items():
        if importlib.util.find_spec(library) is not None:
            importlib.import_module(module)
    gc.collect()
    gc.freeze()  # a collection in a worker would write to every page that it shares
    pyspark.daemon.manager()


if __name__ == "__main__":
    main()
