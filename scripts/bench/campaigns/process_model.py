"""Campaign of a process reward model against a baseline by turn number, on Sokoban.

    python -m scripts.bench.campaigns.process_model --folder outputs/process_model [--labels outcomes]

The protocol was fixed before any run.  **Data**: the embedded policy plays 300 training rooms twice, each episode with
16 continuations, and 128 test rooms once, each with 32 (`lit-agentrl collect continuations=…`).  **Training**: seeds 0,
1 and 2, 75 iterations of 32 episodes, with the rate of `algo=process_reward`; the last weights.  **Figure**: for each
turn of a test episode except its last, the squared error of the model's probability against the share of solved
continuations, minus the squared error of the mean training label of turns with this number; then the mean over the
turns of an episode and over the seeds, then over episodes, with a 95 % t interval over them.  **Criterion**: the
interval is below 0.

``--labels outcomes`` was fixed before its runs, after the first protocol had missed the criterion: 500 training rooms
are played eight times, without continuations; every turn is labelled with the success of its episode; one pass of 113
iterations, the last weights.  The baseline is the mean success of the episodes that have another turn after a turn of
this number.  Test, figure and criterion are the same.  The folder stores finished work; the same command continues from
there.

``--labels more`` was fixed before its runs, after the second protocol had missed the criterion: as ``outcomes``, with
1,000 rooms, 225 iterations, a third of the rate and a cosine to 0 (from one pilot, seed 100, by the Brier score on
held-out rooms).  The model is the mean of the three seeds' probabilities, as `reward=model` computes it from a list of
models; the figure is its error minus that of the baseline.

``--labels most`` was fixed before its runs, after the third protocol had missed the criterion with too few episodes to
decide: as ``more``, with 1,500 rooms and 337 iterations, and 512 test rooms with 16 continuations.
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
from lit_agentrl.report.statistics import Interval, compute_mean_interval
from lit_agentrl.rewards.learned.scoring import compute_turn_values
from scripts.bench.campaigns.cells import Outcome, finish_run, make_campaign_parser, read_or_measure
from scripts.bench.common import keep_last

SEEDS = (0, 1, 2)
PLAYED = "model=nano env=sokoban"
TEST = "split=test episodes=128 members=1 continuations=32"
LARGER_TEST = "split=test episodes=512 members=1 continuations=16"
BY_LABELS = {  # recordings for training, and options of the model
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
TOKENS = 8192  # number of tokens scored together

Turns = Sequence[Sequence[float]]  # a list per episode with a number per turn


def list_labels(episodes: Sequence[Episode]) -> Turns:
    """Return the label that `collect` wrote for each turn: the sum of rewards so far."""
    return [list(accumulate(turn.training_reward for turn in episode.turns)) for episode in episodes]


def list_outcomes(episodes: Sequence[Episode]) -> Turns:
    """Return the label of each turn without continuations: the success of its episode."""
    return [[float(episode.success)] * len(episode.turns) for episode in episodes]


def average_by_number(given: Turns) -> dict[int, float]:
    """Compute the mean label by turn number, without the last turn of each episode.

    The key -1 has the mean over all of these turns.
    """
    found: dict[int, list[float]] = {}
    for turns in given:
        for number, label in enumerate(turns[:-1]):
            found.setdefault(number, []).append(label)
    return {n: fmean(each) for n, each in found.items()} | {
        -1: fmean(x for each in found.values() for x in each)
    }


def compute_errors(said: Turns, true: Turns) -> list[float]:
    """Compute each episode's mean squared error over its turns, except the last.

    Episodes of one turn are omitted.
    """
    pairs = (list(zip(one, other, strict=True))[:-1] for one, other in zip(said, true, strict=True))
    return [fmean((a - b) ** 2 for a, b in turns) for turns in pairs if turns]


def predict_by_number(true: Turns, means: Mapping[int, float]) -> Turns:
    """Predict each turn's label from its number alone."""
    return [[means.get(number, means[-1]) for number in range(len(turns))] for turns in true]


def compute_gap(models: Sequence[Sequence[float]], baseline: Sequence[float]) -> Interval:
    """Compute the mean over episodes of the models' error minus the baseline's.

    The models' error is a mean over the seeds.
    """
    return compute_mean_interval([fmean(of) - base for *of, base in zip(*models, baseline, strict=True)])


def average_models(models: Sequence[Turns]) -> Turns:
    """Average the predictions of several models for each turn."""
    return [[fmean(turn) for turn in zip(*episode, strict=True)] for episode in zip(*models, strict=True)]


def format_table(
    models: Mapping[int, Sequence[float]], baseline: Sequence[float], together: Sequence[float] | None = None
) -> str:
    """Format squared errors of each seed and of the baseline, and their difference."""
    found = compute_gap(list(models.values()) if together is None else [together], baseline)
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


def record_episodes(folder: Path, options: str, further: Sequence[str]) -> EpisodeFolder:
    """Return the folder of `collect`, which is run if necessary."""
    collect([*keep_last([*PLAYED.split(), *options.split(), *further]), f"out={folder}"])
    found = open_folder(folder)
    assert found is not None and found.is_complete
    return found


def main() -> None:
    """Collect, train and measure all unfinished cells, and print the table."""
    parser = make_campaign_parser("A process reward model against the number of the turn.", SEEDS)
    parser.add_argument(
        "--labels", choices=BY_LABELS, default="continuations", help="of the turns of training"
    )
    parser.add_argument("--collect", nargs="*", default=[], help="further options of both recordings")
    given = parser.parse_args()
    home: Path = given.folder.resolve()
    recording, model_options = BY_LABELS[given.labels]
    train = record_episodes(home / "train", recording, given.collect)
    rooms = LARGER_TEST if given.labels == "most" else TEST
    test = list(record_episodes(home / "test", rooms, given.collect).read())
    true = list_labels(test)
    label = list_labels if given.labels == "continuations" else list_outcomes
    baseline = compute_errors(predict_by_number(true, average_by_number(label(list(train.read())))), true)
    tokenizer = train.described["policy"]["tokenizer"]

    def measure(folder: Path, options: Sequence[str]) -> Outcome:
        model = load_model(str(finish_run(folder, options).folder), tokenizer)
        value_A = compute_turn_values(model, test, TOKENS, torch.device("cpu")).tolist()
        at = [0, *accumulate(len(episode.turns) for episode in test)]
        said = [value_A[a:b] for a, b in zip(at, at[1:], strict=False)]
        return {"said": said, "errors": compute_errors(said, true)}

    models: dict[int, Sequence[float]] = {}
    said: list[Turns] = []
    for seed in given.seeds:
        options = keep_last(
            [*model_options.split(), f"data.path={home / 'train'}", f"seed={seed}", *given.options]
        )
        found = read_or_measure(
            home / f"seed_{seed}.json", lambda s=seed, o=options: measure(home / f"seed_{s}", o)
        )
        models[seed] = found["errors"]
        said.append(found.get("said", []))
    together = compute_errors(average_models(said), true) if given.labels in TOGETHER else None
    (home / "table.md").write_text(format_table(models, baseline, together) + "\n")
    print(format_table(models, baseline, together))


if __name__ == "__main__":
    main()
