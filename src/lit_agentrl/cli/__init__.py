"""Subcommands of ``lit-agentrl``, one file each: its ``main`` is called, and its first line is the help."""
