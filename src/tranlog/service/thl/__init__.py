"""The `thl` command: `thl` has the subcommands, `thl_list` and `thl_dump` the two large ones.

`either_codec` reads a log of either codec, `listing` and `integrity` are the texts, `converting` is `thl convert`.
"""
