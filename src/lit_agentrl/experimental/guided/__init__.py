"""Replies and actions chosen by a critic: SVPO and AgentQ."""
