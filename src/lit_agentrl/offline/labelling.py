"""Labelling of recorded episodes by a judge instead of people (RLAIF, CLoud, CAI).

The judge compares episodes, criticises them, or revises their replies.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import torch
from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf

from lit_agentrl import screen
from lit_agentrl.checks import name_errors, require, require_number, require_one_of, require_whole
from lit_agentrl.config.composition import compose_job
from lit_agentrl.config.errors import UserError
from lit_agentrl.config.overrides import parse
from lit_agentrl.config.signatures import check_targets
from lit_agentrl.data.episodes import open_folder
from lit_agentrl.data.kinds import MOST, group_by_prompt
from lit_agentrl.episode import Episode
from lit_agentrl.models.remote import load_remote
from lit_agentrl.offline.collecting import describe_difference
from lit_agentrl.offline.comparing import Comparing
from lit_agentrl.offline.criticising import Criticising
from lit_agentrl.offline.revising import Revising
from lit_agentrl.rewards.base import RewardContext
from lit_agentrl.rewards.learned.judge import Judge
from lit_agentrl.rollout.adviser import Adviser
from lit_agentrl.runs.run_folder import lock_folder

# options of the judge that have an effect here
_JUDGE_OPTIONS = {
    "engine", "model", "temperature", "max_reply_tokens", "max_context_tokens", "principles", "shows_end",
    "most_characters", "retries",
}  # fmt: skip


class LabelKind(Protocol):
    """A kind of label: the questions to the judge, and the files of its answers.

    Attributes:
        least: least number of episodes of a prompt.
        why: reason why other options of a judge have no effect.
        nouns: what is read from a reply, and what is asked for.
        folder: creates a folder of labels from a path, a description and the number of ``planned`` shards.
        open: opens such a folder; None if there is nothing yet.
        check: refuses a judge that makes no sense.
        repair: repairs what a killed process left.
        describe_content: says how many labels a folder has.
        ask: returns the labels of some prompts and counts of the questions, including ``asked`` and ``unread``.
        add: writes a shard of labels.
        describe_result: yields the lines to print at the end.
    """

    least: int
    why: str
    nouns: tuple[str, str]
    folder: Callable[..., Any]
    open: Callable[[Path], Any]
    check: Callable[[Judge], None]
    repair: Callable[[Any], None]
    describe_content: Callable[[Any], str]
    ask: Callable[[Judge, Sequence[Sequence[Episode]], int], tuple[Sequence[Any], Counter[str]]]
    add: Callable[[Any, Sequence[Any], int], Any]
    describe_result: Callable[[Any, Mapping[str, int]], Iterator[str]]


LABEL_KINDS: Mapping[str, Callable[[DictConfig], Any]] = {
    "better": Comparing,
    "critique": Criticising,
    "revision": Revising,
}


def label(cfg: DictConfig, judge_overrides: Sequence[str]) -> Iterator[str]:
    """Label recorded episodes with a judge, and write the labels.

    The labels are ratings (as returns), critiques, or revisions.

    Args:
        cfg: the options of ``conf/label.yaml``.
        judge_overrides: options that describe the judge, such as ``reward=judge``.

    Yields:
        Lines about the result, for people.

    Raises:
        ValueError: an option makes no sense, a folder holds something else, or too many replies of the judge are
            unreadable.
    """
    kind = _choose_kind(cfg)
    with name_errors("data"):
        source = open_folder(Path(str(cfg.data)))
    if source is None or not source.is_complete:
        raise UserError(
            f"data={cfg.data} {'is empty or incomplete' if Path(str(cfg.data)).exists() else 'is not there'}; run the "
            "command that collects it"
        )
    out = Path(str(cfg.out))
    with name_errors("out"):
        existing = kind.open(out)
    section, judge = _build_judge(judge_overrides, kind)
    prompts = [
        group
        for group in group_by_prompt(e for e in source.read() if not e.failed)
        if len(group) >= kind.least
    ]
    if not prompts:
        raise UserError(
            f"data={cfg.data} has no prompt with {kind.least} episodes that did not fail; collect it with "
            f"members={kind.least} or more"
        )
    numbers = {name: cfg[name] for name in ("rounds", "shard", "seed")}
    description = {
        **source.described,
        "judged": {"by": section, "shards": [s.sha256 for s in source.shards], **numbers},
    }
    starts = range(0, len(prompts), cfg.shard)
    with lock_folder(out):
        folder = existing or kind.folder(out, description, planned=len(starts))
        if existing is not None and (differs := describe_difference(folder.described, description)):
            raise UserError(
                f"out={out} holds the labels of another command: {differs}; choose another folder"
            )
        with name_errors("out"):
            kind.repair(folder)
        if len(folder.shards) >= len(starts):
            yield f"{out} is complete: {kind.describe_content(folder)}"
            return
        _set_up_judge(judge, cfg.seed)
        if existing is None:
            folder.write_manifest()
        counts: Counter[str] = Counter()
        with closing(judge):
            for start in starts[len(folder.shards) :]:
                batch = prompts[start : start + cfg.shard]
                screen.announce(f"judging prompts {start + 1} to {start + len(batch)} of {len(prompts)}")
                labels, batch_counts = kind.ask(judge, batch, start)
                _require_readable(cfg, kind, batch_counts)
                counts += batch_counts
                folder = kind.add(folder, labels, start)
            yield from kind.describe_result(folder, counts)
            yield "judge: " + ", ".join(f"{name} {amount:g}" for name, amount in judge.get_usage().items())


def _choose_kind(cfg: DictConfig) -> LabelKind:
    for name in ("data", "out"):
        require(
            isinstance(cfg[name], str) and bool(cfg[name].strip()), name, cfg[name], "the name of a folder"
        )
    require_one_of("asks", cfg.asks, tuple(LABEL_KINDS))
    for name in ("rounds", "shard"):
        require_whole(name, cfg[name], 1, MOST)
    require_whole("seed", cfg.seed, 0, 2**32 - 1)
    require_number("max_unread_share", cfg.max_unread_share, "in [0, 1]", lambda share: 0 <= share <= 1)
    kind: LabelKind = LABEL_KINDS[cfg.asks](cfg)
    return kind


def _build_judge(judge_overrides: Sequence[str], kind: LabelKind) -> tuple[dict[str, Any], Judge]:
    for override in parse(judge_overrides):
        name = override.key_or_group.removeprefix("reward.judge.").partition(".")[0]
        if override.key_or_group != "reward" and name not in _JUDGE_OPTIONS:
            raise UserError(f"{override.input_line} has no effect: {kind.why}; leave it out")
    saved = compose_job("train", list(judge_overrides))
    if list(saved.reward) != ["judge"]:
        raise UserError(
            "reward must be judge or judge_local, since it defines the judge, such as reward=judge"
        )
    section = OmegaConf.masked_copy(saved, ["reward"])
    check_targets(section)
    with name_errors("reward.judge"):
        judge = instantiate(section.reward.judge)
    kind.check(judge)
    plain: Any = OmegaConf.to_container(section.reward.judge, resolve=True)
    return plain, judge


def _set_up_judge(judge: Judge, seed: int) -> None:
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    opened = partial(Adviser, device=device)
    with name_errors("reward.judge"):
        judge.setup(
            RewardContext(device=device, tokenizer=load_remote().tokenizer, seed=seed, open_answerer=opened)
        )


def _require_readable(cfg: DictConfig, kind: LabelKind, counts: Mapping[str, int]) -> None:
    if counts.get("unread", 0) > cfg.max_unread_share * max(counts["asked"], 1):
        read, asked = kind.nouns
        raise UserError(
            f"the judge gave no readable {read} in {counts['unread']} of {counts['asked']} {asked} (more than "
            f"max_unread_share={cfg.max_unread_share:g}); choose another judge, or raise reward.judge.retries"
        )
