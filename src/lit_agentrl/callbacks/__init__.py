"""Callbacks around an iteration: logs, checkpoints, live display, transcripts."""
