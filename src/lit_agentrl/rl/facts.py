"""Derive what an objective requires and provides from the columns that it reads."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from lit_agentrl import facts
from lit_agentrl.requirements import Fact, Requirement

if TYPE_CHECKING:
    from lit_agentrl.rl.objective import Objective

_PLAIN = "algo/advantage=group_mean_std"
# column that an estimator reads -> fact that provides it, reason, and an option whose estimator does not read it
_REQUIRED = {
    "baseline_B": (facts.BASELINE, "its return is subtracted", "algo/advantage=loo"),
    "tree_B": (facts.BRANCHES, "without them it would be algo/advantage=group_mean_std", _PLAIN),
    "node_BT": (facts.BRANCHES, "without them it would be algo/advantage=group_mean_std", _PLAIN),
    "rank_BT": (facts.RANKS, "it compares replies by their ranks", "algo/pairing=tree_state"),
    "is_plan_BT": (facts.PLANS, "it treats planner and executor differently", _PLAIN),
    "is_opponent_B": (facts.OPPONENT, "the policy is compared with it", ""),
    "ref_quantile_B": (
        facts.REFERENCE_REWARDS,
        "it compares each reward with them",
        "algo/advantage=quantile",
    ),
    "value_BT": (facts.VALUES, "", ""),
    "state_key_BK": (facts.STATE_KEYS, "it compares equal states", _PLAIN),
    "sampler_entropy_BT": (facts.ENTROPIES, "", "algo/tokens=none and no adaptive algo/entropy"),
}
_REQUIRED |= {column: (fact, "", "") for column, fact in facts.VALUE_COLUMNS.items()}
# axis whose part needs each trajectory in one row -> options that do not need that
_REMEDIES = {
    "correction": "algo/correction=truncated or masked",
    "ratio": "algo/ratio=token or turn",
    "clip": "algo/clip=symmetric or clip_higher",
}
_READ = {
    "ref_logp_BT": facts.READS_REFERENCE,
    "value_BT": facts.READS_VALUES,
    "is_opponent_B": facts.READS_OPPONENT,
    "cost_BT": facts.READS_COSTS,
    "ref_quantile_B": facts.READS_REFERENCE_REWARDS,
    "old_logp_BT": facts.READS_OLD_LOG_PROBS,
}

# columns that slow weights compute
_TARGETS = ("target_value_BT", "target_q_BT", "target_implicit_q_BT", "target_cost_value_BT")


def list_requirements(objective: Objective) -> Iterator[Requirement]:
    """List what `Objective.requirements` and `Objective.needs` require of the run."""
    name, needs = objective.name, objective.requirements
    if not objective.trains:
        yield Requirement(
            facts.LESSONS, by=f"algo={name}", reason="it trains nothing", remedy="another algorithm"
        )
    else:
        reason = "it trains on the sampled token ids; an engine of texts can only be evaluated"
        yield Requirement(facts.TOKEN_IDS, by="training", reason=reason)
        yield Requirement(
            facts.TAKES_WEIGHTS, by="training", reason="episodes must be played with the trained weights"
        )
    if needs.min_members > 1:
        yield Requirement(
            facts.GROUP_SIZE, needs.min_members, by=f"algo={name}", reason="it compares the episodes of a group",
            remedy="an algorithm that does not, such as algo=reinforce",
        )  # fmt: skip
    if needs.min_steps > 1:
        yield Requirement(
            facts.STEPS, needs.min_steps, by="algo.kl.coef", reason="it has no effect in the first step"
        )
    if needs.all_groups:
        yield Requirement(
            facts.ALL_GROUPS,
            by=f"algo.cost of {name}",
            reason="it measures the mean cost of all played episodes",
        )
    if objective.needs("cost_BT"):
        yield Requirement(
            facts.COSTS,
            by=f"algo.cost of {name}",
            reason="it keeps costs within a limit",
            remedy="algo/cost=none",
        )
    yield from _list_data_requirements(objective)
    if needs.prompt_factor != 1:
        yield Requirement(
            facts.MORE_GROUPS, by=f"algo.rows of {name}",
            reason=f"it asks for {needs.prompt_factor:g} times as many prompts", remedy="algo.rows.refill=false",
        )  # fmt: skip
    for axis in needs.whole_trajectories:
        yield Requirement(
            facts.WHOLE_CONTEXT, by=f"algo.{axis} of {name}", reason="it needs each trajectory in one row",
            remedy=_REMEDIES[axis],
        )  # fmt: skip
    for column, (fact, reason, remedy) in _REQUIRED.items():
        if objective.needs(column):
            yield Requirement(
                fact, by=f"{get_estimator_option(objective)} of {name}", reason=reason, remedy=remedy
            )
    if objective.needs("baseline_B"):
        yield Requirement(
            facts.UNSHAPED, by=f"algo.advantage of {name}", remedy="algo/advantage=loo",
            reason="it subtracts the return of the greedy episode, which no part shapes",
        )  # fmt: skip
    if objective.needs("old_logp_BT") and not objective.needs("sampler_logp_BT"):
        yield Requirement(
            facts.EXACT_LOG_PROBS, by=f"algo={name}", reason="it treats recorded log-probs as those of the policy",
            remedy="algo/correction=truncated",
        )  # fmt: skip


def _list_data_requirements(objective: Objective) -> Iterator[Requirement]:
    """List the data that a reward model is trained and validated on."""
    by = f"algo={objective.name}"
    if not _has_scores(objective):
        return
    if objective.score_kind == "referred":
        yield Requirement(facts.REFERRED, by=by, reason="it compares an answer with a reference answer")
    reason = "it trains a reward model"
    yield Requirement(facts.RECORDED, by=by, reason=reason)
    yield Requirement(facts.HELD_OUT, by=by, reason=reason)
    if objective.score_kind == "cost":
        yield Requirement(facts.COST_SCORES, by=by, reason="it learns to predict costs")


def _has_scores(objective: Objective) -> bool:
    return "score_BT" in objective.reads


def list_provisions(objective: Objective) -> Iterator[Fact]:
    """List what an objective reads or trains, as facts on which other parts may depend."""
    yield from (fact for column, fact in _READ.items() if objective.needs(column))
    yield from (fact for column, fact in facts.VALUE_READERS.items() if objective.needs(column))
    if any(objective.needs(column) for column in _TARGETS):
        yield facts.READS_TARGETS
    if _has_scores(objective):
        yield facts.TRAINS_SCORES
        kinds = {"cost": facts.LEARNS_COSTS, "referred": facts.LEARNS_REFERRED}
        yield from (fact for kind, fact in kinds.items() if kind == objective.score_kind)
        yield from [facts.READS_STEP_LABELS] if objective.needs("reward_BT") else []
    elif objective.trains:
        yield facts.TRAINS_POLICY
    if objective.requirements.min_members == 1:
        yield facts.SEPARATE_MEMBERS


def get_estimator_option(objective: Objective) -> str:
    """Return the option of the part that reads values."""
    return "algo.targets" if hasattr(objective, "targets") else "algo.advantage"
