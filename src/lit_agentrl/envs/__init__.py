"""Text games and tasks: grid worlds, questions, tools, shops and adapters."""
