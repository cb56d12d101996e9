"""The driver of a pipeline: `apply.run_apply` is one run, `operation` a pipeline under an operator.

`tending` keeps the channels at work, `limit_search` finds where a limit lies, `replanning` brings another plan.
"""
