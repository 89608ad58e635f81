"""Replies that a critic chooses or ranks: SVPO and AgentQ."""
