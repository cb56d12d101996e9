"""Writing a log: `log.Log` is its one writer, and each of its operations is one of its `steps`.

`opening` makes what a crash left whole, `journal` writes bytes, `publishing` tells what is visible and durable,
`log_end` moves both. Above it `rotation` ends segments, `appending`, `allocating` and `open_transaction` take
transactions, `rolling_back` abandons them; `spilling` writes what of them lies beside the log, `purging` gives segments
up.
"""
