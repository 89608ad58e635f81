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
from scripts.bench.campaigns.cells import Outcome, campaign_parser, finished, kept
from scripts.bench.campaigns.comparisons import gains, played, success
from scripts.bench.campaigns.guards import COLLECTED, MODELS, PLAYS, SIDES, VALIDATED
from scripts.bench.common import last_of

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
        collect([*last_of([*COLLECTED.split(), *recorded]), f"out={home / 'episodes'}"])

    def model(self, name: str, seed: int, data: str) -> str:
        """Train a pair model if necessary, and return its folder."""
        own = [*MODELS["pairs"].split(), f"data.path={data}", f"seed={seed}", *self.more]
        finished(self.home / name, last_of(own))
        return str(self.home / name)

    def run(self, name: str, seed: int, *own: str) -> Result:
        """Train a policy with the given rewards."""
        base = [*PLAYS.split(), *VALIDATED.split(), *SIDES["alone"][1].split()]
        return finished(self.home / name, last_of([*base, f"seed={seed}", *own, *self.more]))

    def side(self, name: str, seed: int) -> Result:
        """Return the last run of a side."""
        episodes = str(self.home / "episodes")
        models = {each: self.model(f"pairs_{each}", each, episodes) for each in self.seeds}
        if name == "alone":
            return self.run(f"alone_val_{seed}", seed, f"reward.model.path={models[seed]}")
        if name in ENSEMBLES:
            paths = f"reward.model.path=[{','.join(models.values())}]"
            return self.run(f"{name}_{seed}", seed, paths, ENSEMBLES[name])
        half = f"trainer.max_epochs={REFRESHED_AT}"
        first = self.run(f"before_{seed}", seed, f"reward.model.path={models[seed]}", half)
        path = models[seed] if name == "restarted" else self.refreshed_model(first, seed)
        begins = self.home / f"weights_{seed}"
        if not begins.exists():
            replace_folder(begins, first.policy("last").save)
        weights = ["model=hf", f"model.name={begins}", f"reward.model.path={path}"]
        left = f"trainer.max_epochs={ITERATIONS - REFRESHED_AT}"
        return self.run(f"{name}_{seed}", seed + 100, *weights, left)

    def refreshed_model(self, first: Result, seed: int) -> str:
        """Return the folder of a model also trained on episodes of a run's last weights."""
        again = str(self.home / f"episodes_{seed}")
        words = last_of([*AGAIN.split(), *self.recorded])
        collect([*words, f"run={first.folder}", f"seed={seed}", f"out={again}"])
        return self.model(f"pairs_again_{seed}", seed, f"[{self.home / 'episodes'},{again}]")

    def measured(self, name: str, seed: int) -> Outcome:
        """Evaluate a side's last weights on the test rooms, and for ``alone`` the start."""
        run = self.side(name, seed)
        found = {"last": played(run, "test", seed, self.rooms), "val": run.metrics["val/success"]}
        if name == "alone":
            found["start"] = played(run, "test", seed, self.rooms, checkpoint="start")
        return found


def table(found: Found) -> str:
    """Format each side's difference to ``alone`` and to the start."""
    alone = found["alone"]
    start = [each["start"] for each in alone.values()]
    lines = ["| side | start | success of each seed | less alone | less start |", "|---" * 5 + "|"]
    for name, seeds in found.items():
        last = [each["last"] for each in seeds.values()]
        gaps = [
            compute_mean_interval(gains(last, [alone[s]["last"] for s in seeds])),
            compute_mean_interval(gains(last, start)),
        ]
        told = [f"{gap.mean:+.3f} [{gap.low:+.3f}, {gap.high:+.3f}]" for gap in gaps]
        ends = ", ".join(f"{success(each):.3f}" for each in last)
        lines.append(f"| {name} | {fmean(map(success, start)):.3f} | {ends} | {' | '.join(told)} |")
    return "\n".join(lines)


def main() -> None:
    """Train and measure all unfinished cells, and print the table."""
    parser = campaign_parser(
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
            seed: kept(home / f"guard_{name}_{seed}.json", partial(campaign.measured, name, seed))
            for seed in given.seeds
        }
        for name in ("alone", *given.sides)
    }
    (home / "table_ensembles.md").write_text(f"{table(found)}\n")
    print(table(found))


if __name__ == "__main__":
    main()
