"""Text in and out of a policy: prompts, chat templates, the reply parser and the token ledger."""
