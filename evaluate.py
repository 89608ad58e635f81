"""Evaluate the policy of a run: ``python evaluate.py run=FOLDER env=sokoban split=test episodes=512``."""

import sys

try:
    from lit_agentrl.cli.evaluate import main
except ModuleNotFoundError as error:
    sys.exit(
        f"error: {sys.executable} has no module {error.name}; run make setup once, then . .venv/bin/activate"
    )

if __name__ == "__main__":
    main()
