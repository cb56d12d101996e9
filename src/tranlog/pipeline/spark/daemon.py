"""The process that Spark forks its Python workers from, with all that a channel needs imported before it forks.

Owns nothing but those imports; what the daemon does is PySpark's. The hard idea: a worker that is forked with its
modules costs neither the time nor, as long as nobody writes to them, the memory to load them again. So nothing
imported here may start a thread or open anything, since neither survives a fork.
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
