"""Direction in which group-relative estimators push a choice between safe and risky payoffs.

    python scripts/misled.py [--share 0.14]

In groups of 8, each episode chooses between a sure 0.15 and a risk, which pays 1 with probability 0.25, else 0, as in
the bandit; the fraction ``--share`` takes the risk, which is the better choice.  For each group, the advantages of the
episodes that took the risk are summed; the mean over groups is printed.  Positive values make the risk more frequent.
The last line shows ``group_mean_std`` on the 8 groups of each 16 whose returns have the largest standard deviation, as
``filter=top_std filter.ratio=0.5`` selects them.
"""

from __future__ import annotations

import argparse

import torch

from lit_agentrl.rl.credit import advantages, structured_advantages

GROUPS, MEMBERS, SURE, CHANCE = 50_000, 8, 0.15, 0.25


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--share", type=float, default=0.14, help="how often the risk is taken; 0.14: before training"
    )
    share = parser.parse_args().share
    generator = torch.Generator().manual_seed(0)
    took = torch.rand(GROUPS, MEMBERS, generator=generator) < share
    won = torch.rand(GROUPS, MEMBERS, generator=generator) < CHANCE
    return_B = torch.where(took, won.float(), torch.tensor(SURE)).flatten()
    index = torch.arange(GROUPS * MEMBERS)
    given = {
        "return_B": return_B, "group_B": index // MEMBERS, "trajectory_B": index,
        "is_action_BT": torch.ones(len(index), 1, dtype=torch.bool),
    }  # fmt: skip
    standardised = advantages.group_mean_std(**given).advantage_BT
    widest_16 = return_B.view(-1, 16, MEMBERS).std(2).argsort(1, descending=True)[:, :8]
    is_wide = torch.zeros(GROUPS // 16, 16, dtype=torch.bool).scatter(1, widest_16, True).flatten()
    everyone = torch.ones(GROUPS, dtype=torch.bool)
    for name, advantage_BT, kept in (
        ("group_mean", advantages.group_mean(**given).advantage_BT, everyone),
        ("loo", advantages.loo(**given).advantage_BT, everyone),
        ("group_mean_std", standardised, everyone),
        ("indicator", structured_advantages.indicator(**given).advantage_BT, everyone),
        ("group_mean_std, widest half", standardised, is_wide),
    ):
        # a constant shared by the group does not change the choice, so it is subtracted
        by_group = advantage_BT.view(GROUPS, MEMBERS)
        push = ((by_group - by_group.mean(1, keepdim=True)) * took).sum(1)[kept]
        error = float(push.std() / len(push) ** 0.5)
        print(f"{name:28} {float(push.mean()):+.3f} ± {1.96 * error:.3f}")


if __name__ == "__main__":
    main()
