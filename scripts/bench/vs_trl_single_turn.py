"""Single-turn GRPO against TRL's GRPOTrainer, on transformers' generation.

    make bench-trl                                           # makes .venv-trl and runs this and the next
    .venv-trl/bin/python -m scripts.bench.vs_trl_single_turn --threads 2 --cores
    .venv-trl/bin/python -m scripts.bench.vs_trl_single_turn --precision bfloat16 --trl-precision float32

Both sides have one reply to the opening message of a Sokoban room, the game's own reward, the same rooms and the
same weights, P prompts x N replies (16 x 8), one optimizer step on all of them, no KL, no reference network, only
default logs, no validation and no checkpoints.  Every reply has exactly --reply-tokens tokens: TRL by
min_new_tokens = max_new_tokens, ours by a stop rule that never applies.  Every token is sampled on both sides.  An
iteration ends where the next one begins; `rollout` is the time to make the training batch (generation, games, rewards,
advantages, on our side also the ledger and the packing), `update` the rest.  Turns and tokens of both sides must be
equal, otherwise nothing is printed.

TRL's micro-batch is --trl-micro-batch: try several values, since the fastest depends on the machine.
"""

from __future__ import annotations

from scripts.bench import trl_sides


def main() -> None:
    trl_sides.compare(__file__, __doc__, turns=1, reply_tokens=32)


if __name__ == "__main__":
    main()
