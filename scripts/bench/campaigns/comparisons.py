"""Campaign of methods that learn from recorded comparisons, on Sokoban with three seeds.

    lit-agentrl collect model=nano env=sokoban episodes=250 members=8 out=EPISODES
    python -m scripts.bench.campaigns.comparisons --data EPISODES --folder outputs/comparisons

The policy is the embedded one.  The protocol was fixed before any run.  **Selection**: each method has two learning
rates.  One run of each rate, with a seed that no other run has, plays 512 validation rooms with its last weights.
Among the rates whose share of invalid replies is at most 0.03, the one with the highest success is chosen; ties go to
the lower rate.  If no rate qualifies, the method has none.  **Test**: with that rate, seeds 0, 1 and 2 train once each,
as long as in the selection; the last weights play the 512 test rooms at temperature 1 with the noise of their seed, and
the start plays the same rooms with the same noise.  **Figure**: for each room the mean difference over the seeds; then
its mean over the rooms, with a 95 % t interval over them.  **Criteria**: every method has its interval above 0; ``sft``
gains 0.08 or more, the best method of offline pairs or labels 0.08, ``online_dpo`` 0.10; invalid replies are at most
0.03.  Passes: three for ``sft``, one over about 1,400 episodes for all others, 2,560 new episodes for ``online_dpo``.
The folder stores finished work; the same command continues from there.

**Further looks**, ``--look 2`` and ``--look 3``, were each fixed before their runs, after the look before had missed
criteria.  They have one rate for each method, so nothing is selected.  It is the shipped rate for ``dpo``, ``ipo`` and
``simpo``, with one pass; rates and lengths of the others come from pilots with seeds 100 and 101 on validation rooms
(findings/preferences.md).  Seeds, test, figure and criteria are the same.  The second look has pairs by returns, like
the first.  The third has only pairs of a solved and an unsolved side (``data.score=success``; online: returns that
differ by 1 or more).  There ``control`` is the NLL of ``step_dpo`` without its pairs, and ``--temperature 0.3``, the
best one of the start (learning.md), is also used to play the finished runs and the start: a gain at this temperature is
more than sharpening.

**Fourth look**, ``--look 4``, was fixed before its runs, after ``online_dpo`` had missed its criterion three times:
five iterations of 512 episodes instead of twenty of 128, up to eight pairs per room, an NLL of the chosen side of each
pair, and three epochs of eight minibatches.  Setting and rate come from one pilot, seed 100, with six settings.
``control`` is the NLL without the pairs.  It needs no recorded episodes, and also has both temperatures.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

from lit_agentrl.api import Result
from lit_agentrl.report.statistics import compute_mean_interval, compute_wilson_interval
from scripts.bench.campaigns.cells import Outcome, finish_run, make_campaign_parser, read_or_measure
from scripts.bench.common import keep_last

SEEDS = (0, 1, 2)
SELECTION_SEED = 100
LARGEST_INVALID = 0.03
FIXED = "env=sokoban test.episodes=0 val.every=1000 val.episodes=4"
PAIRS = "data=pairs trainer.max_epochs=44"
Methods = Mapping[str, tuple[str, tuple[float, ...]]]
METHODS: Methods = {  # options, and the rates to try in ascending order
    "sft": ("algo=sft data=demonstrations data.keep=success trainer.max_epochs=111", (1e-4, 3e-4)),
    "dpo": (f"algo=dpo {PAIRS}", (2e-5, 4e-5)),
    "kto": ("algo=kto data=unpaired algo.desirable_weight=2.5 trainer.max_epochs=44", (2e-5, 4e-5)),
    "ipo": (f"algo=ipo {PAIRS}", (2e-5, 4e-5)),
    "simpo": (f"algo=simpo {PAIRS}", (2e-5, 4e-5)),
    "step_dpo": (f"algo=step_dpo data.of=turn {PAIRS}", (5e-5, 8e-5)),
    "online_dpo": ("algo=online_dpo trainer.max_epochs=20", (5e-5, 1e-4)),
}
SECOND: Methods = {
    "orpo": ("algo=orpo data=pairs data.most=8 trainer.max_epochs=132 optim.schedule=cosine", (2e-4,)),
    "dpo": (METHODS["dpo"][0], (2e-5,)),
    "ipo": (METHODS["ipo"][0], (2e-5,)),
    "simpo": (METHODS["simpo"][0], (2e-5,)),
    "step_dpo": ("algo=step_dpo data.of=turn data=pairs trainer.max_epochs=132", (2e-5,)),
    "online_dpo": (
        "algo=online_dpo algo/pairing=all_pairs algo/nll=unit algo.nll.coef=1.0 trainer.max_epochs=20",
        (1e-4,),
    ),
}
SOLVED = "data.score=success"
CHOSEN = (
    f"algo=step_dpo data=pairs data.of=turn {SOLVED} algo/nll=unit algo.nll.coef=3.0 trainer.max_epochs=132 "
    "optim.schedule=cosine"
)
THIRD: Methods = {
    "orpo": (f"{SECOND['orpo'][0]} {SOLVED}", (2e-4,)),
    "step_dpo": (CHOSEN, (2e-4,)),
    "control": (f"{CHOSEN} algo.weight=1e-9", (2e-4,)),
    "dpo": (f"{METHODS['dpo'][0]} {SOLVED}", (2e-5,)),
    "online_dpo": (
        "algo=online_dpo algo/pairing=equal_state algo.pairing.min_gap=1.0 algo.pairing.most=3 algo/nll=unit "
        "algo.nll.coef=3.0 update=four_minibatches update.epochs=2 trainer.max_epochs=20 optim.schedule=cosine",
        (2e-4,),
    ),
}
EACH_CHOSEN = (
    "algo=online_dpo algo.beta=0.03 algo/pairing=all_pairs algo.pairing.min_gap=1.0 algo.pairing.most=8 algo/nll=unit "
    "algo.nll.coef=3.0 algo.nll.of=pairs rollout.prompts=64 update.minibatches=8 update.epochs=3 "
    "trainer.max_epochs=5 optim.schedule=cosine"
)
FOURTH: Methods = {
    "online_dpo": (EACH_CHOSEN, (1e-4,)),
    "control": (f"{EACH_CHOSEN} algo.weight=1e-9", (1e-4,)),
}
LOOKS = {1: METHODS, 2: SECOND, 3: THIRD, 4: FOURTH}


def measure(
    folder: Path, options: Sequence[str], split: str, seed: int, rooms: int, temperature: float = 1.0
) -> Outcome:
    """Run to the end, and return the ``solved`` rooms and the share of ``invalid`` replies."""
    return evaluate(finish_run(folder, options), split, seed, rooms, temperature=temperature)


def evaluate(run: Result, split: str, seed: int, rooms: int, **options: Any) -> Outcome:
    """Evaluate the weights of a run."""
    given = {"split": split, "episodes": rooms, "temperature": 1.0, "seed": seed, "trust_run": True}
    (scores,) = run.evaluate(**given | options).records
    return {"solved": scores["solved"], "invalid": scores["invalid_share"]}


def choose_rate(tried: Mapping[float, Outcome]) -> float | None:
    """Choose the rate by the selection rule; None if no rate qualifies."""
    whole = [rate for rate, each in tried.items() if each["invalid"] <= LARGEST_INVALID]
    return max(whole, key=lambda rate: (compute_success(tried[rate]), -rate), default=None)


def compute_success(outcome: Outcome) -> float:
    """Compute the share of solved rooms; a room whose game failed counts as unsolved."""
    return fmean(map(float, map(bool, outcome["solved"])))


def compute_gains(found: Sequence[Outcome], starts: Sequence[Outcome]) -> list[float]:
    """Compute each room's gain in success over the start, as a mean over seeds."""
    own, base = (zip(*(map(bool, each["solved"]) for each in side), strict=True) for side in (found, starts))
    return [fmean(after) - fmean(before) for after, before in zip(own, base, strict=True)]


def format_table(
    tried: Mapping[str, Mapping[float, Outcome]],
    found: Mapping[str, Mapping[int, Outcome]],
    starts: Mapping[int, Outcome],
    methods: Methods = METHODS,
) -> str:
    """Format each method's rates on validation rooms and its test success against the start."""
    lines = [
        "| method | rates: validation success, invalid replies | seeds | start | success of each seed | difference "
        "| invalid |",
        "|---" * 7 + "|",
    ]
    for name, rates in tried.items():
        own = found.get(name, {})
        chosen = choose_rate(rates) if len(rates) == len(methods[name][1]) else None
        tried_rates = ", ".join(
            f"{'**' * (rate == chosen)}{rate:g}{'**' * (rate == chosen)}: "
            f"{compute_success(each):.3f}, {each['invalid']:.3f}"
            for rate, each in rates.items()
        ) or ", ".join(f"{rate:g}" for rate in methods[name][1])
        line = f"| {name} | {tried_rates} | {len(own)} |"
        if own:
            base, after = [starts[seed] for seed in own], list(own.values())
            line += (
                f" {fmean(map(compute_success, base)):.3f} | {', '.join(map(format_interval, after))} | "
                f"{format_gap(after, base)} | {fmean(each['invalid'] for each in after):.3f} |"
            )
        lines.append(line if own else line + " – | – | – | – |")
    return "\n".join([*lines, *format_gains_over_control(found)])


def format_gains_over_control(found: Mapping[str, Mapping[int, Outcome]]) -> list[str]:
    """Format the gain over the control for each other method with the same seeds."""
    control = found.get("control", {})
    others = {
        name: own for name, own in found.items() if name != "control" and control and {*own} == {*control}
    }
    return [
        f"\n{name} less control: {format_gap([own[seed] for seed in control], list(control.values()))}"
        for name, own in others.items()
    ]


def format_gap(found: Sequence[Outcome], base: Sequence[Outcome]) -> str:
    """Format the mean difference over rooms with its interval."""
    gap = compute_mean_interval(compute_gains(found, base))
    return f"{gap.mean:+.3f} [{gap.low:+.3f}, {gap.high:+.3f}] (n = {gap.n})"


def format_interval(outcome: Outcome) -> str:
    """Format success with its interval."""
    solved = list(map(bool, outcome["solved"]))
    share = compute_wilson_interval(sum(solved), len(solved))
    return f"{share.mean:.3f} [{share.low:.3f}, {share.high:.3f}]"


def main() -> None:
    """Run all unfinished cells, and write the table after each."""
    parser = make_campaign_parser(
        "Methods that learn from recorded comparisons.",
        SEEDS,
        folder="stores finished work; each look has its own",
    )
    parser.add_argument(
        "--data", type=Path, help="a folder of lit-agentrl collect, for methods that do not play"
    )
    parser.add_argument("--look", type=int, choices=LOOKS, default=1)
    parser.add_argument("--methods", nargs="+", choices={**METHODS, **SECOND, **THIRD, **FOURTH})
    parser.add_argument(
        "--temperature", type=float, default=1.0, help="of the test; other than 1: the control of sharpening"
    )
    parser.add_argument("--rooms", type=int, default=512, help="of validation, and of the test")
    given = parser.parse_args()
    home: Path = given.folder.resolve()
    methods, kind = LOOKS[given.look], "" if given.temperature == 1 else f"_t{given.temperature:g}"
    names = given.methods or list(methods)
    if unknown := [name for name in names if name not in methods]:
        parser.error(f"look {given.look} has no {unknown[0]}; it has {', '.join(methods)}")
    if given.data is None and any("data=" in methods[name][0] for name in names):
        parser.error(
            "--data is needed: lit-agentrl collect model=nano env=sokoban episodes=250 members=8 out=DATA"
        )
    tried: dict[str, dict[float, Outcome]] = {}
    found: dict[str, dict[int, Outcome]] = {}
    starts: dict[int, Outcome] = {}

    def find_folder(name: str, rate: float, seed: int) -> Path:
        return home / f"{name}_{rate:.0e}_{seed}"

    def run_cell(name: str, rate: float, seed: int, split: str) -> Outcome:
        folder = find_folder(name, rate, seed)
        temperature = given.temperature if split == "test" else 1.0
        options = [*FIXED.split(), *methods[name][0].split(), f"optim.lr={rate}", f"seed={seed}"]
        options += [f"data.path={given.data.resolve()}"] if "data=" in methods[name][0] else []
        options = keep_last([*options, *given.options])
        run = partial(measure, folder, options, split, seed, given.rooms, temperature)
        return read_or_measure(home / f"{folder.name}{kind * (split == 'test')}.json", run)

    def write_table() -> None:
        (home / f"table{kind}.md").write_text(format_table(tried, found, starts, methods) + "\n")

    for name in names:
        rates, tried[name] = methods[name][1], {}
        if len(rates) > 1:
            for each in rates:
                tried[name][each] = run_cell(name, each, SELECTION_SEED, "val")
                write_table()
        rate = choose_rate(tried[name]) if len(rates) > 1 else rates[0]
        if rate is None:
            continue
        for seed in given.seeds:
            outcome = run_cell(name, rate, seed, "test")
            run = Result(find_folder(name, rate, seed))
            start = {"checkpoint": "start", "temperature": given.temperature}
            play = partial(evaluate, run, "test", seed, given.rooms, **start)
            starts[seed] = read_or_measure(home / f"start_{seed}{kind}.json", play)
            found.setdefault(name, {})[seed] = outcome
            write_table()
    print(format_table(tried, found, starts, methods))


if __name__ == "__main__":
    main()
