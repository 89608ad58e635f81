"""Single-turn GRPO beside TRL's GRPOTrainer."""

from __future__ import annotations

import trl_sides


def main() -> None:
    trl_sides.compare(__file__, __doc__, turns=1, reply_tokens=32)


if __name__ == "__main__":
    main()
