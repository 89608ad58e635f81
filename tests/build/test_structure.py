"""Structures beside filters and algorithms: what fits is built, what does not is refused in one line."""

from __future__ import annotations

import pytest
from hydra import compose

from lit_agentrl.build.parts import Parts, build_parts
from lit_agentrl.config.composition import initialize_hydra, make_task_loader
from tests.conftest import thinned

INDEPENDENT = "algo/structure=independent"


def built(*overrides: str) -> Parts:
    with initialize_hydra():
        cfg = compose("train", overrides=["env=bandit", *overrides])
        cfg.run_dir = "."
        return build_parts(cfg, make_task_loader())


@pytest.mark.parametrize(
    ("options", "name"),
    thinned(
        [
            ((), "Refill"),
            (("algo=remax",), "Greedy"),
            (("algo=remax", "filter=dynamic_sampling", "algo.structure.max_waves=3"), "Greedy"),
            (("filter=dynamic_sampling",), "Refill"),
            ((INDEPENDENT,), "Independent"),
            ((INDEPENDENT, "algo=dapo", "filter.target=null"), "Independent"),
            ((INDEPENDENT, "algo=cppo", "algo.rows.refill=false"), "Independent"),
            (("algo=arpo", "algo/advantage=branch_hard", "filter=dynamic_sampling"), "EntropyBranch"),
            (("algo=tree_grpo", "algo.structure.trees=1", "algo.structure.expansions=7"), "Trees"),
        ]
    ),
)
def test_what_fits(options: tuple[str, ...], name: str) -> None:
    assert type(built(*options).structure).__name__ == name


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ("algo=remax", "algo/structure=refill"),
            r"not given by algo\.structure=Refill: .* set algo/structure=greedy",
        ),
        (
            ("algo/advantage=greedy",),
            r"algo\.advantage of grpo .* set algo/structure=greedy, or algo/advantage",
        ),
        (
            (INDEPENDENT, "algo=dapo"),
            r"filter=dynamic_sampling needs further groups .* set algo/structure=refill, or filter\.tar",
        ),
        (
            (INDEPENDENT, "algo=cppo"),
            r"asks for 2 times as many prompts; set algo/structure=refill, or algo",
        ),
        (
            ("algo=tree_grpo", "rollout.members=6"),
            r"^algo\.structure\.expansions=3 .* set rollout\.members=4, or other trees",
        ),
        (
            ("algo=grpo", "algo/structure=mcts", "algo.structure.critic_share=1"),
            "Mcts needs the values of a critic, .*set critic=separate .*critic_share=0",
        ),
        (
            ("algo=mcts_ppo", "worker=process"),
            r"played in the training process, .* set worker=none",
        ),
        (
            ("algo=tree_grpo", INDEPENDENT),
            r"needs episodes that branch, .* set algo/structure=tree, branch or mcts, or algo/adv",
        ),
        (
            ("algo=mcts_ppo", "strategy=fsdp", "trainer.accelerator=cpu"),
            r"Mcts needs all weights in each training process, .* set strategy=single or strategy=ddp",
        ),
        (
            ("algo.structure.max_waves=3",),
            r"algo\.structure\.max_waves=3 needs a filter that asks .* filter=dynamic_sampling",
        ),
    ],
)
def test_what_does_not_fit(options: tuple[str, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        built(*options)
