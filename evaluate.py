"""Evaluate the policy of a run: ``python evaluate.py run=FOLDER env=sokoban split=test episodes=512``."""

from lit_agentrl.cli.evaluate import main

if __name__ == "__main__":
    main()
