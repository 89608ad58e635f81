"""Where episodes are played."""
