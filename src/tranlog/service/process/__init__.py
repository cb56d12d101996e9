"""A process that runs, `operating` or `capturing`, and its ports: `control`, what it is asked (`requests`), `metrics`.

`client` is the other end.
"""
