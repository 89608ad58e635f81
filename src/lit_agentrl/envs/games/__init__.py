"""Grid worlds and bandits."""
