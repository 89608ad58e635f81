"""Pictures of rollout structures and a reward, as docs/images/structure_NAME.svg.

    python scripts/structure_pictures.py [NAME ...]

They belong to docs/structures.md, docs/experimental.md and docs/rewards.md.  Each shows recorded episodes that the
embedded policy played.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer

from lit_agentrl.api import train
from lit_agentrl.batch import StepBatch
from lit_agentrl.episode import PLANNER, Episode, Source

IMAGES = Path(__file__).resolve().parents[1] / "docs" / "images"
LAKE = "env=frozen_lake env.max_turns=4 rollout.prompts=4 rollout.members=8"
HARD = "env=sokoban env.game.lengths=uniform env.max_turns=4 rollout.prompts=8 rollout.members=4"
RUNS = {
    "independent": f"{LAKE} algo/structure=independent",
    "refill": f"{LAKE} rollout.members=4 filter=dynamic_sampling",
    "greedy": f"{LAKE} algo=remax",
    "branch": f"{LAKE} algo=arpo",
    "tree": f"{LAKE} algo=tree_grpo",
    "mcts": f"{LAKE} algo/structure=mcts",
    "first_error": f"{LAKE} algo=step_dpo algo/structure=first_error algo/pairing=first_error",
    "replay": f"{HARD} algo=arpo_replay rollout.instances=8 trainer.max_epochs=4",
    "hint": f"{HARD} algo=ghpo",
    "retry": "env=sokoban env.max_turns=1 env.max_actions_per_turn=10 algo=ufo rollout.prompts=16 rollout.members=8",
    "forget": f"{LAKE} algo=eepo algo.structure.threshold=9",
    "opponent": f"{LAKE} algo=xpo",
    "memory": f"{LAKE} algo=archer rollout.members=4 trainer.max_epochs=2",
    "two_level": f"{LAKE} algo=hrl_tar rollout.members=4",
    "refine": f"{LAKE} algo/structure=refine rollout.members=4 rollout.max_context_tokens=1024",
    "summary": "env=t_maze context=summary algo/structure=summary algo.structure.tokens=60 rollout.prompts=4 "
    "rollout.members=4",
    "experience": f"{LAKE} algo=training_free_grpo rollout.members=4 trainer.max_epochs=2 rollout.instances=4",
    "delta": f"{HARD} algo=delta reward.delta.at_iteration=1 trainer.max_epochs=2 rollout.instances=4",
}
REWARDS = ("delta",)  # these are rewards rather than structures

COLOURS = {"own": "#3f51b5", "other": "#ef6c00", "line": "#90a4ae", "text": "#263238", "note": "#546e7a"}
LEFT, TOP, STEP, ROW, WIDTH = 150, 62, 90, 30, 640


class Recorder(Callback):
    """A callback that records the batches of a run."""

    batches: tuple[StepBatch, ...] = ()

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: StepBatch, batch_idx: int
    ) -> None:
        Recorder.batches += (batch,)


@dataclass
class Line:
    """An episode in a picture: its replies from ``begin`` on, and its parent line."""

    label: str
    turns: int
    solved: bool
    begin: int = 0
    parent: int | None = None
    colour: str = "own"
    note: str = ""
    block: int = 0  # lines of one block share their opening
    plans: Sequence[int] = ()  # numbers of the replies that are plans


def record(name: str) -> tuple[StepBatch, ...]:
    """Record the iterations of a short run with a structure."""
    Recorder.batches = ()
    with tempfile.TemporaryDirectory() as home:
        conf = Path(home) / "conf" / "callbacks"
        conf.mkdir(parents=True)
        (conf / "recorder.yaml").write_text(
            "defaults: [default, _self_]\nrecorder: {_target_: structure_pictures.Recorder}\n"
        )
        given = (
            "trainer.max_epochs=1 val.episodes=2 test.episodes=0 callbacks=recorder trainer.accelerator=cpu"
        )
        options = dict(option.split("=", 1) for option in f"{given} {RUNS[name]}".split())
        train(
            *(f"{key}={value}" for key, value in options.items()),
            config_dir=conf.parent,
            folder=f"{home}/run",
        )
    return Recorder.batches


def make_line(episode: Episode, **further: Any) -> Line:
    turns = sum(len(turn.reply_tokens) > 0 for turn in episode.turns)
    plans = [number for number, turn in enumerate(episode.turns) if turn.player == PLANNER]
    settings = {"label": f"episode {episode.member}", "begin": episode.branch_turn, "plans": plans, **further}
    return Line(turns=turns, solved=episode.success, **settings)


def arrange_branches(episodes: Sequence[Episode]) -> list[Line]:
    """Arrange a group with branches below their parents, the latest first.

    In this order no two lines cross.
    """
    lines: list[Line] = []

    def add(episode: Episode, parent: int | None, block: int) -> None:
        colour = "own" if parent is None else "other"
        lines.append(make_line(episode, parent=parent, block=block, colour=colour))
        here = len(lines) - 1
        children = [e for e in episodes if e.parent == episode.member]
        for child in sorted(children, key=lambda e: (-e.branch_turn, e.member)):
            add(child, here, block)

    trees = sorted({e.tree_member for e in episodes})
    roots = [e for e in episodes if e.parent is None]
    for tree in trees:
        for root in (e for e in roots if e.tree_member == tree):
            add(root, None, 0 if len(roots) == len(trees) else tree)
    return lines


def of_branches(batches: Sequence[StepBatch]) -> list[Line]:
    """Draw the group with the most branch points."""
    groups = _split_groups(batches[0].episodes)
    return arrange_branches(max(groups, key=lambda group: len({(e.parent, e.branch_turn) for e in group})))


def of_refill(batches: Sequence[StepBatch]) -> list[Line]:
    """Draw a group that the filter dropped, and one of the second wave."""
    groups = _split_groups(batches[0].episodes)
    even = next(group for group in groups if len({e.success for e in group}) == 1)
    more = next(group for group in groups if group[0].wave == 1)
    return [
        *(make_line(e, note="all alike: the filter drops the group" if e is even[0] else "") for e in even),
        *(
            make_line(
                e, block=1, colour="other", note="so another prompt is played: wave 2" if e is more[0] else ""
            )
            for e in more
        ),
    ]


def of_greedy(batches: Sequence[StepBatch]) -> list[Line]:
    greedy = batches[0].greedy_episodes[0]
    group = [e for e in batches[0].episodes if e.group == greedy.group]
    return [
        *map(make_line, group),
        make_line(greedy, label="greedy", colour="other", note="the baseline, not trained on"),
    ]


def of_replay(batches: Sequence[StepBatch]) -> list[Line]:
    """Draw a group in which all fail, and the success that replaces its first row."""
    for batch in batches:
        assert batch.trajectories is not None
        rows = batch.trajectories
        for group in rows.group_B[rows.source_B == Source.REPLAY].tolist():
            failed = [e for e in batch.episodes if e.group == group]
            seed = failed[0].instance_seed
            kept = [e for b in batches for e in b.episodes if e.instance_seed == seed and e.success]
            then = min(kept, key=lambda e: e.iteration)
            stored = make_line(
                then, label=f"episode {then.member}", colour="other", block=1,
                note=f"kept of iteration {then.iteration + 1}: trained on in its place",
            )  # fmt: skip
            note = f"iteration {batch.iteration + 1}: all fail, and this row is replaced"
            return [*(make_line(e, note=note if e is failed[0] else "") for e in failed), stored]
    raise ValueError("no group was replaced; play longer")


def of_hint(batches: Sequence[StepBatch]) -> list[Line]:
    """Draw the group with the most tries, preferring groups with a success."""
    group = max(
        _split_groups(batches[0].episodes), key=lambda group: (any(e.success for e in group), len(group))
    )
    size, shown = 4, []
    for e in group:
        is_first = e.member % size == 0
        note = f"told {e.hint:.0%} of a solution" if e.hint else "no hint: all fail"
        shown.append(
            make_line(
                e, block=e.member // size, colour="other" if e.hint else "own", note=note if is_first else ""
            )
        )
    return shown


def of_retry(batches: Sequence[StepBatch]) -> list[Line]:
    """Draw the group with the most varied numbers of tries; each reply is a try."""
    group = max(_split_groups(batches[0].episodes), key=lambda group: len({len(e.turns) for e in group}))
    note = "each reply is a try at the same instance, told only that the last one was wrong"
    return [make_line(e, note=note if e is group[0] else "") for e in group]


def of_forget(batches: Sequence[StepBatch]) -> list[Line]:
    group = _split_groups(batches[0].episodes)[0]
    moved = [e for e in group if e.source == Source.TRIAL]
    note = "by the weights after one step away from the first half"
    return [
        make_line(e, colour="other" if e in moved else "own", note=note if e is moved[0] else "")
        for e in group
    ]


def of_opponent(batches: Sequence[StepBatch]) -> list[Line]:
    group = _split_groups(batches[0].episodes)[0]
    others = [e for e in group if e.source == Source.OPPONENT]
    note = "by the reference"
    return [
        make_line(e, colour="other" if e in others else "own", note=note if e is others[0] else "")
        for e in group
    ]


def of_memory(batches: Sequence[StepBatch]) -> list[Line]:
    """Draw a group of the second iteration, with added episodes of the first."""
    first, batch = batches
    assert batch.trajectories is not None
    rows = batch.trajectories
    group = _split_groups(batch.episodes)[0]
    is_replayed_B = (rows.group_B == group[0].group) & (rows.source_B == Source.REPLAY)
    played = {
        tuple(t for k in e.turns for t in (*k.prefix_tokens, *k.reply_tokens)): e for e in first.episodes
    }
    replayed = [
        played[tuple(rows.tokens_BT[b][rows.is_real_BT[b]].tolist())]
        for b in is_replayed_B.nonzero().flatten()
    ]
    note = "drawn from iteration 1, of any instance: the critic learns from them too"
    return [
        *map(make_line, group),
        *(
            make_line(
                e,
                label=f"group {e.group}, {e.member}",
                block=1,
                colour="other",
                note=note if e is replayed[0] else "",
            )
            for e in replayed
        ),
    ]


def of_two_level(batches: Sequence[StepBatch]) -> list[Line]:
    """Draw the group whose episodes differ most in length."""
    group = max(_split_groups(batches[0].episodes), key=lambda group: len({len(e.turns) for e in group}))
    note = "a diamond is a plan, of which the game plays nothing"
    return [make_line(e, note=note if e is group[0] else "") for e in group]


def of_summary(batches: Sequence[StepBatch]) -> list[Line]:
    """Draw the first group."""
    group = _split_groups(batches[0].episodes)[0]
    note = "a diamond is a summary; the replies after it do not see those before"
    return [make_line(e, note=note if e is group[0] else "") for e in group]


def of_refine(batches: Sequence[StepBatch]) -> list[Line]:
    """Draw the group of short episodes whose numbers of drafts differ most."""
    groups = [g for g in _split_groups(batches[0].episodes) if max(len(e.turns) for e in g) <= 12]
    group = max(groups, key=lambda group: len({len(e.turns) for e in group}))
    note = "a diamond is a draft, which the policy rewrites; the game plays the others"
    return [make_line(e, note=note if e is group[0] else "") for e in group]


def of_experience(batches: Sequence[StepBatch]) -> list[Line]:
    """Draw a group in which some fail, and the same task in the next iteration."""
    first, after = (_split_groups(batch.episodes) for batch in batches)
    group = next(group for group in first if 0 < sum(e.success for e in group) < len(group))
    again = next(g for g in after if g[0].instance_seed == group[0].instance_seed)
    notes = (
        "some solve it: the policy is asked for lessons",
        "the next iteration: every prompt holds the list of lessons",
    )
    return _draw_two_groups(group, again, notes)


def of_delta(batches: Sequence[StepBatch]) -> list[Line]:
    """Draw a task before and after the switch of the reward, with its training returns."""
    first, after = (_split_groups(batch.episodes) for batch in batches)
    group = max(
        first, key=lambda group: (any(e.success for e in group), len({e.training_return for e in group}))
    )
    again = next(g for g in after if g[0].instance_seed == group[0].instance_seed)
    lines = _draw_two_groups(
        group, again, ("first the points of the game", "then whether the game was solved, and penalties")
    )
    for each, episode in zip(lines, [*group, *again], strict=True):
        each.label = f"{each.label}: {episode.training_return:+.1f}"
    return lines


def _draw_two_groups(
    group: Sequence[Episode], again: Sequence[Episode], notes: tuple[str, str]
) -> list[Line]:
    """Draw two groups, one below the other."""
    return [
        *(make_line(e, note=notes[0] if e is group[0] else "") for e in group),
        *(make_line(e, block=1, colour="other", note=notes[1] if e is again[0] else "") for e in again),
    ]


DRAWN: dict[str, Callable[[Sequence[StepBatch]], list[Line]]] = {
    "refill": of_refill, "greedy": of_greedy, "replay": of_replay, "hint": of_hint, "retry": of_retry,
    "forget": of_forget, "opponent": of_opponent,
    "memory": of_memory, "two_level": of_two_level, "refine": of_refine, "summary": of_summary,
    "experience": of_experience, "delta": of_delta,
}  # fmt: skip


def _split_groups(episodes: Sequence[Episode]) -> list[list[Episode]]:
    groups = sorted({e.group for e in episodes})
    return [sorted((e for e in episodes if e.group == g), key=lambda e: e.member) for g in groups]


def format_svg(name: str, lines: Sequence[Line]) -> str:
    """Return the SVG of a picture, with its own background for light and dark pages."""
    height = _compute_heights(lines)[-1] + 24
    kind = "reward" if name in REWARDS else "algo/structure"
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" '
            f'height="{height}" role="img" font-family="sans-serif" font-size="13" fill="{COLOURS["text"]}">',
            f"<title>{kind}={name}: the episodes of a group, as they were played</title>",
            f'<rect x="0.5" y="0.5" width="{WIDTH - 1}" height="{height - 1}" rx="8" fill="#ffffff" '
            'stroke="#cfd8dc"/>',
            f'<text x="16" y="26" font-family="monospace" font-weight="bold">{name}</text>',
            *_draw_legend(),
            *_draw_body(lines),
            "</svg>",
            "",
        ]
    )


def _compute_heights(lines: Sequence[Line]) -> list[int]:
    """Compute the height of each line, with space for notes above lines and between blocks."""
    found, y = [], TOP - ROW
    for number, each in enumerate(lines):
        is_apart = number > 0 and each.block != lines[number - 1].block
        y += ROW + 12 * is_apart + 22 * bool(each.note)
        found.append(y)
    return found


def _draw_legend() -> Iterator[str]:
    for x, solved, text in ((330, None, "reply"), (410, True, "solved"), (500, False, "not solved")):
        yield _mark(x, 22, solved, COLOURS["own"])
        yield f'<text x="{x + 12}" y="26" fill="{COLOURS["note"]}">{text}</text>'


def _mark(x: float, y: float, solved: bool | None, colour: str) -> str:
    if solved is None:
        return f'<circle cx="{x}" cy="{y}" r="4.5" fill="{colour}"/>'
    if solved:
        return f'<path d="M{x - 6} {y}l4 5 8-10" fill="none" stroke="#2e7d32" stroke-width="3"/>'
    return f'<path d="M{x - 4} {y - 4}l8 8m0-8l-8 8" stroke="#b71c1c" stroke-width="2"/>'


def _plan(x: float, y: float) -> str:
    return f'<path d="M{x - 7:g} {y}l7-7 7 7-7 7z" fill="{COLOURS["other"]}"/>'


def _draw_body(lines: Sequence[Line]) -> Iterator[str]:
    ys, longest = _compute_heights(lines), max(each.turns for each in lines)
    step = min(STEP, (WIDTH - LEFT - 40) / longest)
    openings: dict[int, int] = {}
    for y, each in zip(ys, lines, strict=True):
        colour, begin, end = COLOURS[each.colour], LEFT + step * each.begin, LEFT + step * each.turns
        above = openings.setdefault(each.block, y) if each.parent is None else ys[each.parent]
        if above != y:
            yield f'<path d="M{begin:g} {above}V{y}" stroke="{COLOURS["line"]}" stroke-width="1.5"/>'
        yield f'<text x="16" y="{y + 4}">{each.label}</text>'
        yield f'<path d="M{begin:g} {y}H{end:g}" stroke="{colour}" stroke-width="2"/>'
        for turn in range(each.begin, each.turns):
            x = round(LEFT + step * (turn + 0.5), 1)
            yield _plan(x, y) if turn in each.plans else _mark(x, y, None, colour)
        yield _mark(round(end + 10, 1), y, each.solved, colour)
        if each.note:
            yield f'<text x="{LEFT + 12}" y="{y - 14}" fill="{COLOURS["note"]}">{each.note}</text>'
    for y in openings.values():
        yield f'<rect x="{LEFT - 5}" y="{y - 5}" width="10" height="10" fill="{COLOURS["text"]}"/>'


def main(names: Sequence[str]) -> None:
    os.environ["PYTHONPATH"] = str(Path(__file__).parent)
    sys.path.insert(0, str(Path(__file__).parent))
    sys.modules["structure_pictures"] = sys.modules[__name__]
    for name in names or RUNS:
        lines = DRAWN.get(name, of_branches)(record(name))
        (IMAGES / f"structure_{name}.svg").write_text(format_svg(name, lines))


if __name__ == "__main__":
    main(sys.argv[1:])
