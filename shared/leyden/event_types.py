"""The types of events that only Leyden's own services write, and that no agent may."""

from leyden.triplet import MODEL_REQUEST, REDELIVERED, UNDELIVERED

ATTEMPT_ENDED = "attempt_ended"
"""Of the controller: how an attempt ended, `{cause, message, output}`."""
HOOKED = "hooked"
"""Of the trainer: the rollout's hook has run."""

SERVICES_OWN = frozenset({MODEL_REQUEST, UNDELIVERED, REDELIVERED, ATTEMPT_ENDED, HOOKED})
