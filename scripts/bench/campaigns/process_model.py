"""A process reward model against the number of the turn, on Sokoban with the embedded policy: one command.

    python -m scripts.bench.campaigns.process_model --folder outputs/process_model [--labels outcomes]

Fixed before anything was run.  **Data**: the embedded policy plays 300 rooms of training twice, each episode with 16
continuations, and 128 test rooms once, each with 32 (`lit-agentrl collect continuations=…`).  **Training**: seeds 0, 1
and 2, 75 iterations of 32 episodes, with the rate that `algo=process_reward` has; the last weights.  **Figure**: of
each turn of a test episode but its last one, the squared error of the chance that the model gives against the share of
continuations that are solved, less that of the mean label of the turns of this number in training; the mean over the
turns of an episode and over the seeds, then over episodes, with a 95 % t interval over them.  **Bar**: the interval is
below 0.

With ``--labels outcomes``, fixed before its runs and after the first protocol had missed the bar: 500 rooms of training
are played eight times, without continuations; every turn is labelled with the success of its episode; one pass of 113
iterations, the last weights.  The baseline is the mean success of the episodes that have a further turn after a turn of
this number.  Test, figure and bar are the same.  The folder keeps what was done; the command goes on from there.

With ``--labels more``, fixed before its runs and after the second protocol had missed the bar: as ``outcomes``, with
1,000 rooms, 225 iterations, a third of the rate and a cosine to 0 (of one pilot, seed 100, by the Brier score of held
out rooms).  The model is the mean of the three seeds' chances, as `reward=model` takes it from a list of models; the
figure is its error less the baseline's.

With ``--labels most``, fixed before its runs and after the third protocol had missed the bar with too few episodes to
tell: as ``more``, with 1,500 rooms and 337 iterations, and 512 test rooms with 16 continuations.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from statistics import fmean

import torch

from lit_agentrl.cli.collect import main as collect
from lit_agentrl.data.episodes import EpisodeFolder, open_folder
from lit_agentrl.episode import Episode
from lit_agentrl.models.reward_model import load_model
from lit_agentrl.report.statistics import Interval, mean_interval
from lit_agentrl.rewards.learned.scoring import turn_values
from scripts.bench.campaigns.cells import Outcome, campaign_parser, finished, kept
from scripts.bench.common import last_of

SEEDS = (0, 1, 2)
PLAYED = "model=nano env=sokoban"
TEST = "split=test episodes=128 members=1 continuations=32"
LARGER_TEST = "split=test episodes=512 members=1 continuations=16"
BY_LABELS = {  # what is recorded for training, and the model
    "continuations": (
        "episodes=300 members=2 continuations=16",
        "algo=process_reward algo/label=so_far data=stepwise data.score=labels env=sokoban trainer.max_epochs=75 "
        "val.every=1000",
    ),
    "outcomes": (
        "episodes=500 members=8",
        "algo=process_reward data=unpaired data.held_out=0.1 env=sokoban trainer.max_epochs=113 val.every=1000",
    ),
    "more": (
        "episodes=1000 members=8",
        "algo=process_reward data=unpaired data.held_out=0.1 env=sokoban trainer.max_epochs=225 val.every=1000 "
        "optim.lr=1e-4 optim.schedule=cosine",
    ),
    "most": (
        "episodes=1500 members=8",
        "algo=process_reward data=unpaired data.held_out=0.1 env=sokoban trainer.max_epochs=337 val.every=1000 "
        "optim.lr=1e-4 optim.schedule=cosine",
    ),
}
TOGETHER = ("more", "most")  # the model is the mean of all seeds
TOKENS = 8192  # that are scored together

Turns = Sequence[Sequence[float]]  # one list an episode, one number a turn


def labels(episodes: Sequence[Episode]) -> Turns:
    """What `collect` has written: each turn's share, as the sum of the points so far."""
    return [list(accumulate(turn.training_reward for turn in episode.turns)) for episode in episodes]


def outcomes(episodes: Sequence[Episode]) -> Turns:
    """Each turn's label where nothing was played on: the success of its episode."""
    return [[float(episode.success)] * len(episode.turns) for episode in episodes]


def by_number(given: Turns) -> dict[int, float]:
    """The mean label of the turns of each number, the last of each episode left out; -1: of all of them."""
    found: dict[int, list[float]] = {}
    for turns in given:
        for number, label in enumerate(turns[:-1]):
            found.setdefault(number, []).append(label)
    return {n: fmean(each) for n, each in found.items()} | {
        -1: fmean(x for each in found.values() for x in each)
    }


def errors(said: Turns, true: Turns) -> list[float]:
    """Of each episode that has them, the mean squared error over its turns but the last."""
    pairs = (list(zip(one, other, strict=True))[:-1] for one, other in zip(said, true, strict=True))
    return [fmean((a - b) ** 2 for a, b in turns) for turns in pairs if turns]


def told(true: Turns, means: Mapping[int, float]) -> Turns:
    """What the number of the turn alone says."""
    return [[means.get(number, means[-1]) for number in range(len(turns))] for turns in true]


def gap(models: Sequence[Sequence[float]], baseline: Sequence[float]) -> Interval:
    """The mean over episodes of a model's error, itself a mean over the seeds, less the baseline's."""
    return mean_interval([fmean(of) - base for *of, base in zip(*models, baseline, strict=True)])


def mean_of(models: Sequence[Turns]) -> Turns:
    """What several models say together: the mean of each turn."""
    return [[fmean(turn) for turn in zip(*episode, strict=True)] for episode in zip(*models, strict=True)]


def table(
    models: Mapping[int, Sequence[float]], baseline: Sequence[float], together: Sequence[float] | None = None
) -> str:
    """Squared errors of each seed and of the baseline, and their difference."""
    found = gap(list(models.values()) if together is None else [together], baseline)
    lines = [
        "| | mean squared error |",
        "|---|---|",
        f"| mean label of the turn's number | {fmean(baseline):.4f} |",
    ]
    lines += [f"| process model, seed {seed} | {fmean(each):.4f} |" for seed, each in models.items()]
    if together is not None:
        lines.append(f"| their mean | {fmean(together):.4f} |")
    bounds = f"{found.mean:+.4f} [{found.low:+.4f}, {found.high:+.4f}]"
    of = "mean over seeds" if together is None else "of their mean"
    return "\n".join([*lines, f"| difference, {of} (n = {found.n} episodes) | {bounds} |"])


def recorded(folder: Path, options: str, further: Sequence[str]) -> EpisodeFolder:
    """The folder that `collect` writes, or has written."""
    collect([*last_of([*PLAYED.split(), *options.split(), *further]), f"out={folder}"])
    found = open_folder(folder)
    assert found is not None and found.is_complete
    return found


def main() -> None:
    """Collects, trains and measures what is not done yet, and prints the table."""
    parser = campaign_parser("A process reward model against the number of the turn.", SEEDS)
    parser.add_argument(
        "--labels", choices=BY_LABELS, default="continuations", help="of the turns of training"
    )
    parser.add_argument("--collect", nargs="*", default=[], help="further options of both recordings")
    given = parser.parse_args()
    home: Path = given.folder.resolve()
    record, model_options = BY_LABELS[given.labels]
    train = recorded(home / "train", record, given.collect)
    rooms = LARGER_TEST if given.labels == "most" else TEST
    test = list(recorded(home / "test", rooms, given.collect).read())
    true = labels(test)
    label = labels if given.labels == "continuations" else outcomes
    baseline = errors(told(true, by_number(label(list(train.read())))), true)
    tokenizer = train.described["policy"]["tokenizer"]

    def measured(folder: Path, options: Sequence[str]) -> Outcome:
        model = load_model(str(finished(folder, options).folder), tokenizer)
        value_A = turn_values(model, test, TOKENS, torch.device("cpu")).tolist()
        at = [0, *accumulate(len(episode.turns) for episode in test)]
        said = [value_A[a:b] for a, b in zip(at, at[1:], strict=False)]
        return {"said": said, "errors": errors(said, true)}

    models: dict[int, Sequence[float]] = {}
    said: list[Turns] = []
    for seed in given.seeds:
        options = last_of(
            [*model_options.split(), f"data.path={home / 'train'}", f"seed={seed}", *given.options]
        )
        found = kept(home / f"seed_{seed}.json", lambda s=seed, o=options: measured(home / f"seed_{s}", o))
        models[seed] = found["errors"]
        said.append(found.get("said", []))
    together = errors(mean_of(said), true) if given.labels in TOGETHER else None
    (home / "table.md").write_text(table(models, baseline, together) + "\n")
    print(table(models, baseline, together))


if __name__ == "__main__":
    main()
