"""Recorded episodes compared by a judge, and rated by its verdicts: preferences without people (RLAIF)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf

from lit_agentrl import seeds
from lit_agentrl.checks import named, require, require_number, require_whole
from lit_agentrl.data.episodes import EpisodeFolder, open_folder
from lit_agentrl.data.kinds import MOST, by_prompt, replies, scored
from lit_agentrl.data.ratings import Comparison, connected, ratings
from lit_agentrl.entry import screen
from lit_agentrl.entry.collecting import difference
from lit_agentrl.entry.composition import compose_job
from lit_agentrl.entry.errors import UserError
from lit_agentrl.entry.overrides import parse
from lit_agentrl.entry.ownership import owned
from lit_agentrl.entry.signatures import check_targets
from lit_agentrl.episode import Episode
from lit_agentrl.models.remote import load_remote
from lit_agentrl.rewards.base import RewardContext
from lit_agentrl.rewards.judge import Judge
from lit_agentrl.rollout.adviser import Adviser

# options of the judge that act here
_OF_JUDGE = {
    "engine", "model", "temperature", "max_reply_tokens", "max_context_tokens", "principles", "shows_end",
    "most_characters", "retries",
}  # fmt: skip


def label(cfg: DictConfig, described: Sequence[str]) -> Iterator[str]:
    """Compare the episodes of each prompt, and write them with the judge's ratings as their returns.

    Args:
        cfg: the options of ``conf/label.yaml``.
        described: options that say who judges, as of ``reward=judge``.

    Yields:
        What came of it, in lines for people.

    Raises:
        ValueError: an option makes no sense, a folder that is no such, or a judge that cannot be read.
    """
    _check_options(cfg)
    with named("data"):
        source = open_folder(Path(str(cfg.data)))
    if source is None or not source.is_complete:
        raise UserError(f"data={cfg.data} is empty or not complete; give the command that collects it again")
    out = Path(str(cfg.out))
    with named("out"):
        is_there = open_folder(out)
    section, judge = _judge(described)
    prompts = [group for group in by_prompt(e for e in source.read() if not e.failed) if len(group) > 1]
    if not prompts:
        raise UserError(f"data={cfg.data} has no prompt with two episodes; collect it with members=2 or more")
    numbers = {name: cfg[name] for name in ("rounds", "shard", "seed")}
    told = {
        **source.described,
        "judged": {"by": section, "shards": [s.sha256 for s in source.shards], **numbers},
    }
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    starts = range(0, len(prompts), cfg.shard)
    with owned(out):
        folder = is_there or EpisodeFolder(out, told, planned=len(starts))
        if is_there is not None and (differs := difference(folder.described, told)):
            raise UserError(f"out={out} holds the labels of another command: {differs}; name another folder")
        if len(folder.shards) >= len(starts):
            yield f"{out} is complete: {sum(shard.episodes for shard in folder.shards)} episodes are rated"
            return
        with named("reward.judge"):
            judge.setup(
                RewardContext(
                    device=device, tokenizer=load_remote().tokenizer, seed=cfg.seed,
                    open_answerer=partial(Adviser, device=device),
                )
            )  # fmt: skip
        if is_there is None:
            folder.write_manifest()
        counts: Counter[str] = Counter()
        with closing(judge):
            for start in starts[len(folder.shards) :]:
                here = prompts[start : start + cfg.shard]
                screen.doing(f"judging prompts {start + 1} to {start + len(here)} of {len(prompts)}")
                rated, counted = _rated(cfg, judge, here, start)
                _require_readable(cfg, counted)
                counts += counted
                folder = folder.add(f"judged-{start:07d}", rated)
            yield from _lines(cfg, counts, judge.used())


def _check_options(cfg: DictConfig) -> None:
    for name in ("data", "out"):
        require(
            isinstance(cfg[name], str) and bool(cfg[name].strip()), name, cfg[name], "the name of a folder"
        )
    for name in ("rounds", "shard"):
        require_whole(name, cfg[name], 1, MOST)
    require_whole("seed", cfg.seed, 0, 2**32 - 1)
    require_number("max_unread_share", cfg.max_unread_share, "in [0, 1]", lambda share: 0 <= share <= 1)


def _judge(described: Sequence[str]) -> tuple[dict[str, Any], Judge]:
    for each in parse(described):
        name = each.key_or_group.removeprefix("reward.judge.").partition(".")[0]
        if each.key_or_group != "reward" and name not in _OF_JUDGE:
            raise UserError(
                f"{each.input_line} has no effect: pairs are compared, and nothing is paid; leave it out"
            )
    saved = compose_job("train", list(described))
    if list(saved.reward) != ["judge"]:
        raise UserError("reward must be judge or judge_local: it says who compares, such as reward=judge")
    section = OmegaConf.masked_copy(saved, ["reward"])
    check_targets(section)
    with named("reward.judge"):
        found = instantiate(section.reward.judge)
    plain: Any = OmegaConf.to_container(section.reward.judge, resolve=True)
    return plain, found


def _rated(
    cfg: DictConfig, judge: Judge, prompts: Sequence[Sequence[Episode]], start: int
) -> tuple[list[Episode], Counter[str]]:
    """The episodes that verdicts connect, with their ratings; and how many comparisons came to what."""
    asked = [
        (number, i, j) for number, group in enumerate(prompts) for i, j in _ring(cfg, group, start + number)
    ]
    pairs = [(prompts[number][i], prompts[number][j]) for number, i, j in asked]
    verdicts = judge.labels.compared(pairs, address=start)
    found: list[list[Comparison]] = [[] for _ in prompts]
    counts = Counter[str](asked=len(asked))
    for (number, i, j), (first, second), verdict in zip(asked, pairs, verdicts, strict=True):
        counts[verdict if isinstance(verdict, str) else "consistent"] += 1
        if isinstance(verdict, str):
            continue
        found[number].append((i, j, verdict))
        gap = first.total_reward - second.total_reward
        if gap and verdict != 0.5:
            counts["decided"] += 1
            counts["agreed"] += (gap > 0) == (verdict == 1)
    rated = []
    for group, comparisons in zip(prompts, found, strict=True):
        strengths = ratings(comparisons, len(group))
        kept = connected(comparisons, len(group)) if comparisons else []
        rated += [scored(group[place], strengths[place]) for place in kept]
    counts.update(episodes=sum(map(len, prompts)), rated=len(rated))
    return rated, counts


def _ring(cfg: DictConfig, group: Sequence[Episode], number: int) -> Iterator[tuple[int, int]]:
    """The pairs of a prompt, each once; equal replies are no pair."""
    order = np.random.default_rng(seeds.key(cfg.seed, "ring", number)).permutation(len(group)).tolist()
    met = set()
    for step in range(1, cfg.rounds + 1):
        for place, one in enumerate(order):
            other = order[(place + step) % len(order)]
            pair = frozenset((one, other))
            if len(pair) == 2 and pair not in met and replies(group[one]) != replies(group[other]):
                met.add(pair)
                yield one, other


def _require_readable(cfg: DictConfig, counts: Mapping[str, int]) -> None:
    if counts.get("unread", 0) > cfg.max_unread_share * max(counts["asked"], 1):
        raise UserError(
            f"the judge gave no readable verdict in {counts['unread']} of {counts['asked']} comparisons (more than "
            f"max_unread_share={cfg.max_unread_share:g}); choose another judge, or raise reward.judge.retries"
        )


def _lines(cfg: DictConfig, counts: Mapping[str, int], used: Mapping[str, float]) -> Iterator[str]:
    share = {
        name: counts.get(name, 0) / max(counts["asked"], 1)
        for name in ("consistent", "inconsistent", "unread")
    }
    yield (
        f"{counts['asked']} comparisons, each in both orders: {share['consistent']:.3f} consistent, "
        f"{share['inconsistent']:.3f} inconsistent, {share['unread']:.3f} unread"
    )
    if decided := counts.get("decided", 0):
        yield f"the judge agrees with the returns in {counts.get('agreed', 0) / decided:.3f} of {decided} that differ"
    yield f"{counts['rated']} of {counts['episodes']} episodes are rated, in {cfg.out}"
    yield "judge: " + ", ".join(f"{name} {number:g}" for name, number in used.items())
