"""The driver of a pipeline: `apply.run_apply` is one run, `operation` a pipeline under an operator.

`lease` takes the pipeline at the target and releases it, `tending` keeps the channels running, `limit_search` finds
the seqno of a limit, `replanning` changes the plan, `report` builds the reports.
"""
