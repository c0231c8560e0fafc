"""The `leyden` command: one module a subcommand."""
