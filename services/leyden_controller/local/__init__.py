"""Agents as processes of this machine: how they are started, watched and never left behind. Linux only."""
