"""An agent with two tries at a task, its verifiers and its task sets."""
