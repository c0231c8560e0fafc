"""`make demo`: an agent, a model, and everything of Leyden between them, on one machine."""
