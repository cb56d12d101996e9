"""The pipeline on Spark, from a log into a target: `pipeline.Pipeline` runs one, `options` says what it applies.

Its rooms are in the order of ARCHITECTURE.md, "Layers".
"""
