"""Measurements of Leyden beside what it is compared with; `docs/performance.md` has the commands and the numbers."""
