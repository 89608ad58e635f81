"""What happens around an iteration: loggers, checkpoints, live display, transcripts."""
