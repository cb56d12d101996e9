"""The driver of a pipeline: `apply.run_apply` is one run, `operation` a pipeline under an operator.

`lease` takes the pipeline at the target and gives it back, `tending` keeps the channels at work, `limit_search` finds
where a limit lies, `replanning` brings another plan, `report` tells where the pipeline stands.
"""
