"""Anthropic Messages, forwarded as chat completions: the request one way, the answer and its stream the other."""
