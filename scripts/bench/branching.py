"""Token costs of branching structures against independent episodes with as many leaves.

The game never ends.

python -m scripts.bench.branching --prompts 200
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Mapping, Sequence
from functools import partial
from statistics import mean
from typing import Any

from lit_agentrl.engines.base import SamplingParams
from lit_agentrl.engines.native.engine import NativeEngine
from lit_agentrl.envs.base import Outcome, Task, TextEnv
from lit_agentrl.episode import Episode
from lit_agentrl.experimental.branch import EntropyBranch
from lit_agentrl.models.policy import load_nano
from lit_agentrl.rollout.pack import pack
from lit_agentrl.rollout.rules import Rules
from lit_agentrl.rollout.scheduler import EpisodeSpec, Scheduler, Wave
from lit_agentrl.rollout.structures.base import Structure
from lit_agentrl.rollout.structures.independent import Independent
from lit_agentrl.rollout.structures.tree import Trees
from lit_agentrl.text.chat import ChatRenderer
from lit_agentrl.text.prompts import Prompt
from lit_agentrl.update.microbatches import split_micro_batches

MEMBERS, TURNS = 10, 5
STRUCTURES: dict[str, Structure] = {
    "independent": Independent(),
    "tree 2,2,2": Trees(trees=2, rounds=2, expansions=2),
    "branch 5 of 10": EntropyBranch(initial=5),
}


class Walk(TextEnv):
    """A game that counts steps and never ends."""

    def action_names(self) -> list[str]:
        return ["Up", "Down", "Left", "Right"]

    def _draw_instance(self, seed: int) -> str:
        self._steps = 0
        return str(seed)

    def _observe(self) -> str:
        return f"P _ {self._steps % 10}"

    def _play(self, action: str) -> Outcome:
        self._steps += 1
        return Outcome({"step": 0.0})

    def _get_state(self) -> dict[str, Any]:
        return {"steps": self._steps}

    def _set_state(self, state: Mapping[str, Any]) -> None:
        self._steps = state["steps"]


def play(structure: Structure, prompts: int) -> list[Episode]:
    """Play ``MEMBERS`` leaves of ``TURNS`` turns for each prompt."""
    policy = load_nano()
    task = Task(name="walk", game=Walk, max_turns=TURNS, max_actions=10_000, max_actions_per_turn=5)
    rules = Rules(
        tasks=[task], prompt=Prompt(style="compact"), chat=ChatRenderer(policy.tokenizer), max_context_tokens=600,
        engine=partial(NativeEngine, num_slots=128),
    )  # fmt: skip
    specs = tuple(EpisodeSpec(0, g, m, 0, g) for g in range(prompts) for m in range(MEMBERS))
    params = SamplingParams(max_reply_tokens=40, max_context_tokens=600)
    wave = Wave("train", 0, params, specs, branching=structure.branching(MEMBERS))
    return Scheduler(rules, rules.open_engine(policy.network)).play(wave)


def count_tokens(episodes: Sequence[Episode]) -> dict[str, float]:
    """Count the tokens of rollout and update, and how often messages were read."""
    batch = pack(episodes).to_dict()
    parts = split_micro_batches(batch, 10**9, "shared")
    return {
        "sampled": sum(e.num_sampled for e in episodes),
        "prefilled": sum(e.num_prefilled for e in episodes),
        "reuse": sum(e.num_new for e in episodes) / sum(e.num_prefilled + e.num_shared for e in episodes),
        "rows": sum(part.num_real for part in parts),
        "computed": sum(part.num_needed for part in parts),
    }


def count_per_prompt(episodes: Sequence[Episode]) -> list[int]:
    """Count the sampled tokens of each prompt."""
    return [
        sum(e.num_sampled for e in episodes[start : start + MEMBERS])
        for start in range(0, len(episodes), MEMBERS)
    ]


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--prompts", type=int, default=200)
    prompts = parser.parse_args().prompts
    base: list[int] = []
    print(f"{prompts} prompts, {MEMBERS} leaves, {TURNS} turns")
    print(
        "structure        sampled  prefilled  reuse  rows' tokens  computed in the update  fewer sampled (95 %)"
    )
    for name, structure in STRUCTURES.items():
        episodes = play(structure, prompts)
        counts, sampled = count_tokens(episodes), count_per_prompt(episodes)
        base = base or sampled
        ratios = [b / s for b, s in zip(base, sampled, strict=True)]
        centre = mean(ratios)
        margin = 1.96 * math.sqrt(
            sum((r - centre) ** 2 for r in ratios) / max(len(ratios) - 1, 1) / len(ratios)
        )
        print(
            f"{name:15s} {counts['sampled']:8.0f} {counts['prefilled']:10.0f} {counts['reuse']:6.3f} "
            f"{counts['rows']:13.0f} {counts['computed']:23.0f}  {sum(base) / sum(sampled):.3f} in all, "
            f"mean over prompts {centre:.3f} ± {margin:.3f}"
        )


if __name__ == "__main__":
    main()
