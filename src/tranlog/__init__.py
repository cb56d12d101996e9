"""tranlog: a transaction history log for Python and Spark.

Committed transactions leave a source database, land whole and in order in a durable log, and a pipeline on
Spark applies them in parallel to a target database, exactly once. ARCHITECTURE.md follows one transaction
through the folders.
"""

if not __debug__:
    raise ImportError("tranlog relies on its assertions: start Python without -O and without PYTHONOPTIMIZE")

__version__ = "0.1.0"
