"""Define the subcommands of ``lit-agentrl``: a file each, with ``main`` and a help line."""
