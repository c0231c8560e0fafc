"""Devices that verl does not know by itself."""
