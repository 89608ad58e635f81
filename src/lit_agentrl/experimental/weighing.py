"""Weights of reward parts, fitted so that they rank the recorded episodes of each prompt."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import NamedTuple

import torch
from omegaconf import DictConfig, OmegaConf
from torch import Tensor

from lit_agentrl.build.instantiation import make_policy
from lit_agentrl.build.parts import build_rewards
from lit_agentrl.checks import name_errors, require, require_number, require_one_of, require_whole
from lit_agentrl.config.composition import compose_job
from lit_agentrl.config.errors import UserError
from lit_agentrl.config.overrides import parse
from lit_agentrl.config.signatures import check_targets
from lit_agentrl.data.episodes import MADE_WITH, open_folder
from lit_agentrl.data.kinds import assign_split, group_by_prompt, list_replies
from lit_agentrl.episode import Episode
from lit_agentrl.rewards.base import RewardContext, RewardPart, Shaping, Stage, require_rewards
from lit_agentrl.rewards.pipeline import RewardPipeline, select_trainable
from lit_agentrl.rl.preference.judging import Verdicts
from lit_agentrl.rollout.adviser import Adviser
from lit_agentrl.text.token_bytes import describe_tokenizer, format_tokenizer, hash_tokenizer

_MIN_WEIGHT = 1e-6  # rules with a smaller weight are left out


class Pairs(NamedTuple):
    """Pairs of answers to a prompt, the better one first; P pairs, F rules."""

    gap_PF: Tensor  # score of each rule, better minus worse
    base_P: Tensor  # the same difference of the base reward, to which the rules are added
    table_PC: Tensor  # prompt, 0, and the numbers of sampled tokens of both; see `judging.COLUMNS`

    def judge(self, margin_P: Tensor) -> Verdicts:
        """Judge the pairs by the given reward margins."""
        table_PC = self.table_PC.clone()
        table_PC[:, 1] = margin_P
        return Verdicts(table_PC)


def weigh(cfg: DictConfig, described: Sequence[str]) -> Iterator[str]:
    """Fit a weight to each rule, and evaluate the weights on held-out prompts.

    Args:
        cfg: the options of ``conf/weigh.yaml``.
        described: overrides that name the reward parts and the model, as for training.

    Yields:
        A report in lines; the last one holds options for training.

    Raises:
        ValueError: an option or folder is invalid, or a reward part cannot have a fitted weight.
    """
    _check_options(cfg)
    with name_errors("data"):
        folder = open_folder(Path(str(cfg.data)))
    if folder is None or not folder.is_complete:
        raise UserError(
            f"data={cfg.data} {'is empty or incomplete' if Path(str(cfg.data)).exists() else 'is not there'}; run the "
            "command that collects it"
        )
    job = compose_job("train", list(described))
    check_targets(OmegaConf.masked_copy(job, ["model", "reward", "rollout"]))
    rules, base = _split_parts(build_rewards(job.reward))
    for override in parse(described):
        if override.key_or_group in {f"reward.{name}.weight" for name in rules}:
            raise UserError(f"{override.input_line} has no effect: the weights are fitted; leave it out")
    policy = make_policy(job, trains=False)
    if folder.described.get("policy", {}).get("tokenizer") != hash_tokenizer(policy.tokenizer):
        raise UserError(
            f"data={cfg.data} holds token ids of another tokenizer than that of model={policy.name}: of "
            f"{format_tokenizer(folder.described.get(MADE_WITH))}, and this one is "
            f"{format_tokenizer(describe_tokenizer(policy.tokenizer))}; give the model that played"
        )
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    context = RewardContext(
        device=device,
        tokenizer=policy.tokenizer,
        seed=cfg.seed,
        open_answerer=partial(Adviser, device=device),
    )
    pipeline = RewardPipeline({**base, **rules})
    pipeline.setup(context)
    with closing(pipeline):
        sides = _collect_pairs(group_by_prompt(select_trainable(list(folder.read()))), rules, base, cfg)
    for side, pairs in sides.items():
        if not len(pairs.base_P):
            raise UserError(
                f"data={cfg.data} has no two answers to one prompt that differ in {cfg.score}, with which to {side} "
                "the weights; collect more prompts, with members=2 or more"
            )
    fit, test = sides["fit"], sides["evaluate"]
    weight_F = fit_weights(gap_PF=fit.gap_PF, base_P=fit.base_P, lr=cfg.lr, steps=cfg.steps)
    yield from _describe_fit(list(rules), weight_F, fit, test, base)
    weights = {name: w for name, w in zip(rules, weight_F.tolist(), strict=True) if abs(w) >= _MIN_WEIGHT}
    if not weights:
        yield "no rule separates better from worse answers, so there are no weights to train with"
        return
    yield "train with:"
    yield _format_options(described, list(base), weights)


def _check_options(cfg: DictConfig) -> None:
    require_one_of("score", cfg.score, ("return", "success"))
    require_number("held_out", cfg.held_out, "in (0, 1)", lambda share: 0 < share < 1)
    require_number("lr", cfg.lr, "finite and > 0", lambda lr: lr > 0)
    require_whole("steps", cfg.steps, 1)
    require_whole("seed", cfg.seed, 0, 2**32 - 1)


def _format_options(described: Sequence[str], base: Sequence[str], weights: Mapping[str, float]) -> str:
    """Return the options for training with these weights, leaving out omitted parts."""
    names = (*base, *weights)
    prefixes = ("model", *(f"reward.{name}." for name in names))
    typed = [
        text
        for text, override in zip(described, parse(described), strict=True)
        if override.key_or_group.startswith(prefixes)
    ]
    weight_options = [f"reward.{name}.weight={w:.6g}" for name, w in weights.items()]
    return shlex.join([f"reward=[{','.join(names)}]", *typed, *weight_options])


def _split_parts(pipeline: RewardPipeline) -> tuple[dict[str, Shaping], dict[str, RewardPart]]:
    """Split the reward parts into rules and the base reward."""
    rules: dict[str, Shaping] = {}
    base: dict[str, RewardPart] = {}
    for name, part in pipeline.parts.items():
        if part.stage is Stage.TASK:
            base[name] = part
        elif part.stage is not Stage.WATCH:
            reason = (
                "is not a sum of turn scores" if not isinstance(part, Shaping)
                else "reads states during play" if part.probe is not None
                else "depends on earlier iterations" if part.sees == "all"
                else None
            )  # fmt: skip
            if reason:
                raise UserError(
                    f"reward={name} {reason}, so no weight can be fitted to recorded episodes; leave it out"
                )
            assert isinstance(part, Shaping)
            rules[name] = part
    if not rules:
        raise UserError("reward has no rule; give some, such as 'reward=[format,length,repetition]'")
    return rules, base


def _collect_pairs(
    prompts: Sequence[Sequence[Episode]],
    rules: dict[str, Shaping],
    base: dict[str, RewardPart],
    cfg: DictConfig,
) -> dict[str, Pairs]:
    """Collect all pairs of answers that differ in tokens and score, by split."""
    episodes = [episode for group in prompts for episode in group]
    columns = []
    for name, rule in rules.items():
        scores = rule.score(episodes, iteration=0)
        require_rewards(name, scores, episodes)
        columns.append([sum(row) for row in scores])
    score_EF = torch.tensor(columns, dtype=torch.float64).T
    rewards = [[0.0] * len(episode.turns) for episode in episodes]
    for name, part in base.items():
        rewards = part.apply(rewards, episodes, iteration=0)
        require_rewards(name, rewards, episodes)
    base_E = torch.tensor([sum(row) for row in rewards], dtype=torch.float64)
    triples: dict[str, list[tuple[int, int, int]]] = {"fit": [], "evaluate": []}
    start = 0
    for number, group in enumerate(prompts):
        key = f"{group[0].task_name}|{group[0].instance_seed}"
        side = "fit" if assign_split(key, cfg.held_out) == "train" else "evaluate"
        for i, j in combinations(range(len(group)), 2):
            score_i, score_j = (_get_score(group[k], cfg.score) for k in (i, j))
            if score_i != score_j and list_replies(group[i]) != list_replies(group[j]):
                better, worse = (i, j) if score_i > score_j else (j, i)
                triples[side].append((number, start + better, start + worse))
        start += len(group)
    length_E = torch.tensor([episode.num_action_tokens for episode in episodes], dtype=torch.float64)
    pairs = {}
    for side, rows in triples.items():
        prompt_P, better_P, worse_P = torch.tensor(rows, dtype=torch.int64).reshape(-1, 3).T
        table_PC = torch.stack(
            [prompt_P.double(), torch.zeros(len(rows)).double(), length_E[better_P], length_E[worse_P]], 1
        )
        pairs[side] = Pairs(
            score_EF[better_P] - score_EF[worse_P], base_E[better_P] - base_E[worse_P], table_PC
        )
    return pairs


def _get_score(episode: Episode, score: str) -> float:
    return float(episode.success) if score == "success" else episode.training_return


def _describe_fit(
    names: Sequence[str], weight_F: Tensor, fit: Pairs, test: Pairs, base: dict[str, RewardPart]
) -> Iterator[str]:
    before = compute_hinge_loss(torch.zeros_like(weight_F), gap_PF=fit.gap_PF, base_P=fit.base_P)
    after = compute_hinge_loss(weight_F, gap_PF=fit.gap_PF, base_P=fit.base_P)
    yield f"fitted to {len(fit.base_P)} pairs: loss {float(before):.3f} before, {float(after):.3f} after"
    metrics = test.judge(test.base_P + test.gap_PF @ weight_F).metrics()
    base_result = (
        f"; {' and '.join(base)} alone {test.judge(test.base_P).metrics()['success']:.3f}" if base else ""
    )
    yield (
        f"held out: {metrics['success']:.3f} of {metrics['pairs']:.0f} pairs are ranked correctly{base_result}; "
        f"the shorter one wins in {metrics['shorter_wins']:.3f}"
    )
    for name, w in zip(names, weight_F.tolist(), strict=True):
        if abs(w) < _MIN_WEIGHT:
            yield f"{name} has weight 0: it separates no pairs"


def compute_hinge_loss(weight_F: Tensor, *, gap_PF: Tensor, base_P: Tensor) -> Tensor:
    """Compute the hinge loss of the weighted rules on pairs, a scalar.

    ``mean over pairs of max(0, 1 - (R(better) - R(worse)))`` with ``R = base + sum_i w_i phi_i``, where ``phi_i`` is
    the score of rule i: rule-based rewards (RBR).

    Args:
        weight_F: weight of each rule, reward per unit of score; carries gradient.
        gap_PF: score of each rule on the better answer minus its score on the worse one.
        base_P: the same difference of the base reward, in reward units; zeros without one.
    """
    return (1 - base_P - gap_PF @ weight_F).clamp(min=0).mean()


def fit_weights(*, gap_PF: Tensor, base_P: Tensor, lr: float = 0.01, steps: int = 1000) -> Tensor:
    """Fit the weights (F,), float64, by full-batch AdamW from 0 without weight decay.

    No weight can exceed about ``lr * steps``, so the weights stay finite even if the rules separate all pairs.

    Args:
        gap_PF: as for `compute_hinge_loss`.
        base_P: as for `compute_hinge_loss`.
        lr: learning rate of AdamW, finite and > 0.
        steps: number of steps, >= 1.

    Raises:
        ValueError: an argument is out of range, or there are no pairs.
    """
    require(0 < lr < math.inf, "lr", lr, "finite and > 0")
    require_whole("steps", steps, 1)
    require(len(gap_PF) > 0, "pairs", len(gap_PF), "at least one")
    weight_F = torch.zeros(gap_PF.shape[1], dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.AdamW([weight_F], lr=lr, weight_decay=0.0)
    for _ in range(steps):
        optimizer.zero_grad()
        compute_hinge_loss(weight_F, gap_PF=gap_PF.double(), base_P=base_P.double()).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return weight_F.detach()
