"""Run several jobs of one command."""
