"""Diagnostics of thoughts (``diagnostics=true``): their dependence on observations, their effect on answers."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, replace
from typing import Any

import torch
from torch import Tensor

from lit_agentrl import screen
from lit_agentrl.build.assembly import Run
from lit_agentrl.build.critics import read_beta
from lit_agentrl.config.errors import UserError
from lit_agentrl.engines.base import SamplingParams
from lit_agentrl.engines.given_thoughts import ThoughtEngine, ThoughtOf
from lit_agentrl.envs.world import World
from lit_agentrl.episode import Episode, Outcome
from lit_agentrl.evaluate.replay import replay_episodes, require_shared_weights
from lit_agentrl.models.routers import Routing
from lit_agentrl.report.statistics import (
    compute_clustered_share_interval,
    compute_group_means,
    compute_mean_interval,
)
from lit_agentrl.report.summary import Estimate, to_estimate
from lit_agentrl.rl.diagnostics import information, merged, per_token_code, per_token_paper
from lit_agentrl.rollout.thoughts import (
    SwappedThoughts,
    Thought,
    best_thought,
    draw_turns,
    encode_think_block,
    list_thoughts,
    select_first_turns,
)
from lit_agentrl.update.networks import Networks

SAMPLES = 64  # thoughts in a likelihood matrix, as in arXiv 2604.06268
_SAMPLERS = {"first_turn": "first turns", "any_turn": "any turn"}
_ABLATIONS = {
    "removed": "without thoughts",
    "swapped": "with others' thoughts",
    "best": "with best play's thoughts",
}


def check_run(run: Run) -> None:
    """Refuse a run without thoughts, with ``critic.beta``, or whose engine has separate weights.

    Raises:
        UserError: the message says which, and the remedy.
    """
    if not run.rules.prompt.think:
        raise UserError("diagnostics=true needs thoughts, and the run has prompt.think=false; leave it out")
    if beta := read_beta(run.cfg):
        raise UserError(
            f"diagnostics=true reads likelihoods of the policy alone, and critic.beta={beta:g} reweights "
            "it; set beta=0"
        )
    require_shared_weights(run.cfg, "diagnostics=true reads likelihoods of the run's own network")


def diagnose(
    run: Run, name: str, episodes: Sequence[Episode], params: SamplingParams, *, seed: int
) -> dict[str, Any]:
    """Measure the information in thoughts, and the success when they are ablated.

    The ablations play the episodes up to three more times.  The ablation ``best`` is None if the game does not
    provide the thoughts of best play.

    Args:
        run: the run that has just played the episodes.
        name: name of the game.
        episodes: all episodes of the game, in the order in which they were played.
        params: their sampling parameters.
        seed: seed of the random draws.

    Raises:
        UserError: replies to fewer than 2 prompts had a thought.
    """
    thoughts = list_thoughts(episodes)
    if len({thought.group for thought in thoughts}) < 2:
        raise UserError(
            f"diagnostics=true: replies to {len({t.group for t in thoughts})} tasks of {name} have a thought, and "
            "2 are needed; raise episodes, or leave it out"
        )
    network: Any = run.module.policy.network
    network.to(run.trainer.strategy.root_device)  # the trainer has moved it to the CPU
    limit = run.rules.max_context_tokens - params.max_reply_tokens  # leaves room for any thought
    fitting = [thought for thought in thoughts if len(thought.context) <= limit]
    screen.announce(f"scoring thoughts of {name} after the observations of others")
    samples = {
        "first_turn": select_first_turns(fitting, SAMPLES),
        "any_turn": draw_turns(fitting, SAMPLES, seed),
    }
    results: dict[str, Any] = {
        key: _estimate_information(run, sample, params) for key, sample in samples.items()
    }
    groups = [episode.group for episode in episodes]
    chat, outcomes = run.rules.chat, [episode.outcome for episode in episodes]
    empty, swapped = encode_think_block(chat), SwappedThoughts(thoughts, groups, seed)
    ablations: dict[str, ThoughtOf] = {
        "removed": lambda request, turn: empty,
        "swapped": lambda request, turn: swapped(request.episode, turn),
    }
    if _has_best_thoughts(run, name, [episode.instance_seed for episode in episodes]):
        ablations["best"] = lambda request, turn: encode_think_block(chat, request.note or "")
    results["ablation"] = {"best": None} | {
        key: _compare_success(outcomes, _replay_ablated(run, name, key, params, thought_of))
        for key, thought_of in ablations.items()
    }
    return results


def _has_best_thoughts(run: Run, name: str, instances: Sequence[int]) -> bool:
    """Check whether a game provides best play's first thought for all these instances."""
    task = next(task for task in run.games.tasks if task.name == name)

    def has_best_thought(env: World, instance: int) -> bool:
        env.reset(seed=instance)
        return env.best_thought() is not None

    with closing(task.make(run.rollouts.test.split)) as env:
        return all(has_best_thought(env, instance) for instance in dict.fromkeys(instances))


def _estimate_information(
    run: Run, sample: Sequence[Thought], params: SamplingParams
) -> dict[str, Any] | None:
    """Estimate the information of a sample; None if all contexts are equal."""
    context_numbers = {
        context: number for number, context in enumerate(dict.fromkeys(t.context for t in sample))
    }
    if len(context_numbers) < 2:
        return None
    logp_NP = _compute_log_likelihoods(run, sample, params)
    same_P = torch.tensor([context_numbers[thought.context] for thought in sample])
    logp_NP, own_N = merged(logp_NP=logp_NP, own_N=torch.arange(len(sample)), same_P=same_P)
    tokens_N = torch.tensor([len(thought.tokens) for thought in sample])
    return {
        "thoughts": len(sample),
        "observations": len(context_numbers),
        "tokens": float(tokens_N.double().mean()),
        **asdict(information(logp_NP=logp_NP, own_N=own_N)),
        "per_token_paper": per_token_paper(logp_NP=logp_NP, own_N=own_N, tokens_N=tokens_N),
        "per_token_code": asdict(per_token_code(logp_NP=logp_NP, own_N=own_N, tokens_N=tokens_N)),
    }


def _compute_log_likelihoods(run: Run, sample: Sequence[Thought], params: SamplingParams) -> Tensor:
    """Compute log p(thought i | context j), (N, N), teacher-forced.

    The result is in nats, at the sampling temperature (greedy: at 1).  With two adapters, a thought is scored by the
    adapter of the level that wrote it.
    """
    network = run.module.policy.network
    networks = Networks(
        network, critic=None, reference=None, settings=run.module.updater.settings,
        temperature=params.temperature or 1.0, routing=Routing(),
    )  # fmt: skip
    totals: dict[tuple[int, ...], Tensor] = {}
    for thought in sample:
        if thought.context not in totals:
            rows = _build_rows(thought.context, sample, next(network.parameters()).device)
            with torch.no_grad(), run.trainer.precision_plugin.forward_context():
                totals[thought.context] = networks.compute_logp(rows).double().sum(1).cpu()
    return torch.stack([totals[thought.context] for thought in sample], dim=1)


def _build_rows(
    context: Sequence[int], thoughts: Sequence[Thought], device: torch.device
) -> dict[str, Tensor]:
    """Build one right-padded row per thought: the context, then the thought, which is scored."""
    lengths = [len(context) + len(thought.tokens) for thought in thoughts]
    tokens_BT = torch.zeros(len(thoughts), max(lengths), dtype=torch.int64)
    for row, (thought, end) in enumerate(zip(thoughts, lengths, strict=True)):
        tokens_BT[row, :end] = torch.tensor([*context, *thought.tokens])
    place_T = torch.arange(max(lengths))
    is_real_BT = place_T < torch.tensor(lengths)[:, None]
    rows = {
        "tokens_BT": tokens_BT, "is_real_BT": is_real_BT, "is_action_BT": is_real_BT & (place_T >= len(context)),
        "is_plan_BT": torch.tensor([thought.is_plan for thought in thoughts])[:, None].expand_as(tokens_BT),
    }  # fmt: skip
    return {column: values.to(device) for column, values in rows.items()}


def _replay_ablated(
    run: Run, name: str, key: str, params: SamplingParams, thought_of: ThoughtOf
) -> Sequence[Outcome]:
    """Play the same prompts with the same draws, each reply after a given thought."""
    make = run.rules.engine
    rules = replace(
        run.rules,
        engine=lambda **options: ThoughtEngine(make(**options), thought_of),
        asks=best_thought if key == "best" else None,
    )
    screen.announce(f"playing {name} {_ABLATIONS[key]}")
    return replay_episodes(run, name, rules, params)


def _compare_success(before: Sequence[Outcome], after: Sequence[Outcome]) -> dict[str, Any]:
    """Estimate success, and its difference to before on the episodes that did not fail."""
    pairs = [
        (float(a.success) - float(b.success), b.group)
        for b, a in zip(before, after, strict=True)
        if not (a.failed or b.failed)
    ]
    success = [a.success for a in after if not a.failed]
    return {
        "success": to_estimate(
            compute_clustered_share_interval(success, [a.group for a in after if not a.failed])
        ),
        "difference": to_estimate(compute_mean_interval(compute_group_means(*zip(*pairs, strict=True)))),
    }


def list_scores(thoughts: Mapping[str, Any]) -> Iterator[tuple[str, Estimate | float | None, int]]:
    """Yield the lines of the table: a name, an estimate or a number, and n."""
    for key, title in _SAMPLERS.items():
        if (values := thoughts[key]) is None:
            continue
        n = values["thoughts"]
        yield f"I(X;Z), {title}", values["mutual"], n
        yield f"  at most ({values['observations']} seen)", math.log(values["observations"]), n
        yield "  H(Z|X)", values["conditional_entropy"], n
        yield "  z-score", values["z_score"], n
        yield "  retrieval", values["retrieval"], n
        yield "    chance", values["chance"], n
    for key, title in _ABLATIONS.items():
        if (values := thoughts["ablation"][key]) is None:
            yield title, None, 0
            continue
        yield title, values["success"], values["success"]["n"]
        yield "  difference", values["difference"], values["difference"]["n"]
