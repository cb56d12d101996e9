"""The `tranlog` command: `cli` has the subcommands, the others those of a running pipeline."""
