"""Campaign of reward-model ensembles and refreshed models against reward hacking, on Sokoban.

    python -m scripts.bench.campaigns.reward_ensembles --folder outputs/guards

The protocol was fixed before any run.  The folder is that of ``guards.py``, whose pair models and side ``alone`` (with
``--fall val``) are reused, or made if they are missing.  **Sides**, `algo=grpo`, 128 episodes an iteration, 20
iterations, no KL, rewarded only by pair models: ``alone`` by the model of its seed; ``least`` by the minimum of the
models of all three seeds (``combine=min``); ``cautious`` by their mean minus half their variance
(``combine=cautious``); ``refreshed`` for ten iterations by the model of its seed, then for ten by a model trained for
80 iterations on the first episodes and on 100 rooms that the policy has played eight times since; ``restarted`` in the
same way with the old model in both halves, to show the effect of a new optimizer and other rooms.  Seeds 6, 7 and 8.

**Figure**: the last weights play the 512 test rooms at temperature 1 with the noise of their seed; for each room the
mean difference to ``alone`` over the seeds, then its mean over rooms with a 95 % t interval; likewise to the start.
**Criteria**: a side is a guard if the first interval lies above 0, and it holds if the second does not lie below 0.
The folder stores finished work; the same command continues from there.

**Changed before a second run**: the second half of ``refreshed`` began with ``hf/``, the weights of the best validation
of the first half, which true success had chosen.  It now begins with the last weights, and ``restarted`` is its
control.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from statistics import fmean

from lit_agentrl.api import Result
from lit_agentrl.cli.collect import main as collect
from lit_agentrl.files import replace_folder
from lit_agentrl.report.statistics import compute_mean_interval
from scripts.bench.campaigns.cells import Outcome, finish_run, make_campaign_parser, read_or_measure
from scripts.bench.campaigns.comparisons import compute_gains, compute_success, evaluate
from scripts.bench.campaigns.guards import COLLECTED, MODELS, PLAYS, SIDES, VALIDATED
from scripts.bench.common import keep_last

SEEDS = (6, 7, 8)
ENSEMBLES = {"least": "reward.model.combine=min", "cautious": "reward.model.combine=cautious"}
NAMES = ("alone", *ENSEMBLES, "refreshed", "restarted")
ITERATIONS, REFRESHED_AT = 20, 10
AGAIN = "env=sokoban episodes=100 members=8 first=500"

Found = Mapping[str, Mapping[int, Outcome]]  # by side and seed


class Campaign:
    """The runs of a folder.

    Args:
        home: folder that stores finished work.
        seeds: seeds of models and runs; the ensembles contain the models of all seeds.
        more: further options of every run.
        rooms: number of test rooms.
        recorded: further options of the recordings.
    """

    def __init__(
        self, home: Path, seeds: list[int], more: list[str], *, rooms: int, recorded: list[str]
    ) -> None:
        self.home, self.seeds, self.more, self.rooms, self.recorded = home, seeds, more, rooms, recorded
        collect([*keep_last([*COLLECTED.split(), *recorded]), f"out={home / 'episodes'}"])

    def train_model(self, name: str, seed: int, data: str) -> str:
        """Train a pair model if necessary, and return its folder."""
        own = [*MODELS["pairs"].split(), f"data.path={data}", f"seed={seed}", *self.more]
        finish_run(self.home / name, keep_last(own))
        return str(self.home / name)

    def run(self, name: str, seed: int, *own: str) -> Result:
        """Train a policy with the given rewards."""
        base = [*PLAYS.split(), *VALIDATED.split(), *SIDES["alone"][1].split()]
        return finish_run(self.home / name, keep_last([*base, f"seed={seed}", *own, *self.more]))

    def train_side(self, name: str, seed: int) -> Result:
        """Return the last run of a side."""
        episodes = str(self.home / "episodes")
        models = {each: self.train_model(f"pairs_{each}", each, episodes) for each in self.seeds}
        if name == "alone":
            return self.run(f"alone_val_{seed}", seed, f"reward.model.path={models[seed]}")
        if name in ENSEMBLES:
            paths = f"reward.model.path=[{','.join(models.values())}]"
            return self.run(f"{name}_{seed}", seed, paths, ENSEMBLES[name])
        half = f"trainer.max_epochs={REFRESHED_AT}"
        first = self.run(f"before_{seed}", seed, f"reward.model.path={models[seed]}", half)
        path = models[seed] if name == "restarted" else self.refresh_model(first, seed)
        start = self.home / f"weights_{seed}"
        if not start.exists():
            replace_folder(start, first.policy("last").save)
        weights = ["model=hf", f"model.name={start}", f"reward.model.path={path}"]
        left = f"trainer.max_epochs={ITERATIONS - REFRESHED_AT}"
        return self.run(f"{name}_{seed}", seed + 100, *weights, left)

    def refresh_model(self, first: Result, seed: int) -> str:
        """Return the folder of a model also trained on episodes of a run's last weights."""
        again = str(self.home / f"episodes_{seed}")
        words = keep_last([*AGAIN.split(), *self.recorded])
        collect([*words, f"run={first.folder}", f"seed={seed}", f"out={again}"])
        return self.train_model(f"pairs_again_{seed}", seed, f"[{self.home / 'episodes'},{again}]")

    def measure(self, name: str, seed: int) -> Outcome:
        """Evaluate a side's last weights on the test rooms, and for ``alone`` the start."""
        run = self.train_side(name, seed)
        found = {"last": evaluate(run, "test", seed, self.rooms), "val": run.metrics["val/success"]}
        if name == "alone":
            found["start"] = evaluate(run, "test", seed, self.rooms, checkpoint="start")
        return found


def format_table(found: Found) -> str:
    """Format each side's difference to ``alone`` and to the start."""
    alone = found["alone"]
    start = [each["start"] for each in alone.values()]
    lines = ["| side | start | success of each seed | less alone | less start |", "|---" * 5 + "|"]
    for name, seeds in found.items():
        last = [each["last"] for each in seeds.values()]
        gaps = [
            compute_mean_interval(compute_gains(last, [alone[s]["last"] for s in seeds])),
            compute_mean_interval(compute_gains(last, start)),
        ]
        differences = [f"{gap.mean:+.3f} [{gap.low:+.3f}, {gap.high:+.3f}]" for gap in gaps]
        ends = ", ".join(f"{compute_success(each):.3f}" for each in last)
        lines.append(
            f"| {name} | {fmean(map(compute_success, start)):.3f} | {ends} | {' | '.join(differences)} |"
        )
    return "\n".join(lines)


def main() -> None:
    """Train and measure all unfinished cells, and print the table."""
    parser = make_campaign_parser(
        "Ensembles and refreshed reward models as guards.",
        SEEDS,
        folder="of scripts/bench/campaigns/guards.py",
    )
    parser.add_argument("--sides", nargs="+", choices=NAMES[1:], default=list(NAMES[1:]))
    parser.add_argument("--rooms", type=int, default=512, help="of the test")
    parser.add_argument("--collect", nargs="*", default=[], help="further options of the recordings")
    given = parser.parse_args()
    home = given.folder.resolve()
    campaign = Campaign(home, given.seeds, given.options, rooms=given.rooms, recorded=given.collect)
    found = {
        name: {
            seed: read_or_measure(home / f"guard_{name}_{seed}.json", partial(campaign.measure, name, seed))
            for seed in given.seeds
        }
        for name in ("alone", *given.sides)
    }
    (home / "table_ensembles.md").write_text(f"{format_table(found)}\n")
    print(format_table(found))


if __name__ == "__main__":
    main()
