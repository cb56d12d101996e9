"""Where a pipeline stands: `viewing` gathers it, `view` says it. `view` is pure."""
