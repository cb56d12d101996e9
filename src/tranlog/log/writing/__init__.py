"""Writing a log: `log.Log` is its one writer.

`opening` makes what a crash left whole, `journal` writes bytes, `publishing` tells what is visible and durable,
`log_end` moves both, `allocation` and `open_transaction` take large transactions, `spilling` what of them lies beside
the log, `purging` gives segments up.
"""
