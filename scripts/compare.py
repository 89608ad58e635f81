"""Compare evaluations of several runs with those of the start, on equal tasks.

    python evaluate.py run=RUN checkpoint=start temperature=[1,0.7,0.5,0.3,0] seed=0     # for seeds 0 1 2
    python evaluate.py run=RUN checkpoint=last temperature=[1,0.7,0.5,0.3,0] seed=0      # for each run
    python scripts/compare.py --start START.json … --last LAST.json …

It prints success by temperature, the gain at T=1 of each run, and the best temperature of the runs against the
best of the start: the difference of each instance's mean over seeds, with a 95 % interval over instances.

A file may also be the ``outcomes.json`` of a run, which has start and last weights on the split ``test`` at T=1.
``--env gymnasium`` is for a game with few instances: all episodes of one instance then count as one observation.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from statistics import fmean

from hydra.utils import instantiate
from omegaconf import OmegaConf

from lit_agentrl import seeds
from lit_agentrl.envs.base import Task
from lit_agentrl.paths import CONFIG_DIR
from lit_agentrl.report.statistics import (
    Interval,
    compute_group_means,
    compute_mean_interval,
    compute_wilson_interval,
)

Solved = dict[float, list[bool]]  # temperature -> outcome of each episode
CONF = CONFIG_DIR / "env"


def read(path: Path, stage: str) -> Solved:
    found = json.loads(path.read_text())
    if "scores" in found:
        (solved,) = (s["solved"] for s in found["scores"] if (s["split"], s["stage"]) == ("test", stage))
        return {1.0: [bool(x) for x in solved]}
    # the other records are of prompts that show solved episodes
    played = [record for record in found["results"] if not record.get("shots")]
    return {record["temperature"]: [bool(x) for x in record["solved"]] for record in played}


def list_instances(env: str | None, count: int) -> list[int]:
    """Return the number of each episode's task instance; without a game all differ."""
    if env is None:
        return list(range(count))
    task: Task = instantiate(OmegaConf.load(CONF / f"{env}.yaml"))
    with closing(task.make("test")) as game:  # as `data.prompts` draws them
        resets = (game.reset(seed=seeds.make_key(0, "test-instance", 0, p))[1] for p in range(count))
        ids = [info["instance_id"] for info in resets]
    return [sorted(set(ids)).index(each) for each in ids]


def format_interval(interval: Interval) -> str:
    return f"{interval.mean:+.3f} [{interval.low:+.3f}, {interval.high:+.3f}]"


def format_share(solved: list[bool]) -> str:
    interval = compute_wilson_interval(sum(solved), len(solved))
    return f"{interval.mean:.3f} [{interval.low:.3f}, {interval.high:.3f}]"


def compute_instance_means(
    evaluations: list[Solved], temperature: float, instances: Sequence[int]
) -> list[float]:
    make_groups = [fmean(outcomes) for outcomes in zip(*(e[temperature] for e in evaluations), strict=True)]
    return compute_group_means(make_groups, instances)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--start", type=Path, nargs="+", required=True)
    parser.add_argument("--last", type=Path, nargs="+", required=True)
    parser.add_argument("--env", help="a game of conf/env with few instances")
    arguments = parser.parse_args()
    start, last = [read(p, "start") for p in arguments.start], [read(p, "last") for p in arguments.last]
    temperatures = sorted(set.intersection(*(set(e) for e in start + last)), reverse=True)
    instances = list_instances(arguments.env, len(last[0][temperatures[0]]))
    print(f"{len(instances)} episodes of {len(set(instances))} instances")
    for label, evaluations in (("start", start), ("last", last)):
        for number, evaluation in enumerate(evaluations):
            line = "  ".join(f"T={t:g} {format_share(evaluation[t])}" for t in temperatures)
            print(f"{label} {number}: n={len(evaluation[temperatures[0]])}  {line}")
    means = {
        label: {t: fmean(compute_instance_means(evaluations, t, instances)) for t in temperatures}
        for label, evaluations in (("start", start), ("last", last))
    }
    for number, evaluation in enumerate(last):
        first = temperatures[0]
        pairs = zip(
            compute_instance_means([evaluation], first, instances),
            compute_instance_means(start, first, instances),
            strict=True,
        )
        print(
            f"last {number} - start at T={first:g}: {format_interval(compute_mean_interval([a - b for a, b in pairs]))}"
        )
    best = {label: max(temperatures, key=values.__getitem__) for label, values in means.items()}
    pairs = zip(
        compute_instance_means(last, best["last"], instances),
        compute_instance_means(start, best["start"], instances),
        strict=True,
    )
    print(
        f"best of last (T={best['last']:g}, {means['last'][best['last']]:.3f}) - best of start "
        f"(T={best['start']:g}, {means['start'][best['start']]:.3f}), pooled over {len(last)} runs: "
        f"{format_interval(compute_mean_interval([a - b for a, b in pairs]))}"
    )


if __name__ == "__main__":
    main()
