"""A model call's way through the gateway: opened in the log, forwarded, recorded, answered."""
