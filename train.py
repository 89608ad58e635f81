"""Train an agent: ``python train.py algo=grpo env=sokoban``; see ``python train.py --help``."""

import sys

try:
    from lit_agentrl.cli.train import main
except ModuleNotFoundError as error:
    sys.exit(
        f"error: {sys.executable} has no module {error.name}; run make setup once, then . .venv/bin/activate"
    )

if __name__ == "__main__":
    main()
