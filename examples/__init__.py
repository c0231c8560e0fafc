"""Examples of Leyden at work: they use what any user has, the `leyden` command and environment variables."""
