"""Writing a log: `log.Log` is its one writer.

`opening` makes what a crash left whole, `log_end` moves what is visible and durable, `allocation` and
`open_transaction` take large transactions, `spilling` what of them lies beside the log, `purging` gives segments up.
"""
