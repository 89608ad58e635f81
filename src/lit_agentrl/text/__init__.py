"""Prompts, chat templates, reply grammars and the token ledger."""
