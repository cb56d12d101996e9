"""What is decided about a directory of the ancestor's, and about events that become transactions of ours. Pure.

`recovery` says what a directory's state means, `arrange` which events make a transaction, `translate` what one is as
the other, and what each loses.
"""
