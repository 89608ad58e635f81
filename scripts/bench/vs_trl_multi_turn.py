"""Multi-turn GRPO against TRL's GRPOTrainer with ``environment_factory``, on transformers' generation.

    .venv-trl/bin/python -m scripts.bench.vs_trl_multi_turn --threads 2 --cores
    .venv-trl/bin/python -m scripts.bench.vs_trl_multi_turn --device cuda --model 0.5b-random --precision bfloat16-true

The job is that of vs_trl_single_turn.py, with episodes of --turns turns (5) of Sokoban that continues after it is
solved, so that all episodes are equally long.

TRL plays through tool calls.  The nano policy knows none, and does not have to learn any: its tokenizer is given a
chat template with the two roles of tool calls and a ``response_template`` with which every reply is a call of the one
tool ``reply(text)``.  The policy therefore samples its own format, and the tool is the game, which parses it as our
trainer does.  The tool's result is put into the same tokens that our side puts between two replies.  TRL leaves the
last call at its limit of calls unplayed; the reward function plays it.  Messages do not mention the reward of the last
reply, so they are equally long on both sides.

--model 0.5b-random has the shape of Qwen2.5-0.5B and random weights; with --device cuda both sides run on the
GPU, TRL by ``generate`` or, with --trl-generation continuous, by transformers' continuous batching.
--model tiny-random is the same path on a small network.  --filler makes messages longer, for long contexts.
"""

from __future__ import annotations

from scripts.bench import trl_sides


def main() -> None:
    trl_sides.compare(__file__, __doc__, turns=5, reply_tokens=16)


if __name__ == "__main__":
    main()
