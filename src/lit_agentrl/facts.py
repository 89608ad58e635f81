"""List the facts that parts of several modules require and provide, by their owner."""

from __future__ import annotations

from lit_agentrl.requirements import Fact

# ---------------------------------------------------------------------- algo.structure
BASELINE = Fact(
    "greedy baseline", "a greedy episode of each prompt", "algo/structure=greedy", "algo.structure"
)
BRANCHES = Fact(
    "branches",
    "episodes that branch",
    "algo/structure=tree, branch or mcts",
    "algo.structure",
)
PLANS = Fact("plans", "turns of a planner", "algo/structure=two_level with every above 0", "algo.structure")
OPPONENT = Fact("opponent", "episodes of an opponent", "algo/structure=opponent", "algo.structure")
RANKS = Fact(
    "ranks", "a critic that ranks replies while they are played", "algo/structure=ranked", "algo.structure"
)
MORE_GROUPS = Fact("more groups", "further groups in an iteration", "algo/structure=refill", "algo.structure")
LESSONS = Fact(
    "lessons",
    "a structure that learns from one iteration for the next",
    "algo/structure=experience",
    "algo.structure",
)

# ---------------------------------------------------------------------- algo
READS_REFERENCE = Fact(
    "reads reference",
    "an algorithm that reads a reference",
    "algo/reference=frozen, or a KL term such as algo/kl=loss_k2 or loss_k1_plus",
    "algo",
)
READS_VALUES = Fact(
    "reads values",
    "an algorithm that reads the values of a critic",
    "algo/advantage=gae_turn or gae_token, or algo/targets=tree for a loss of pairs",
    "algo",
)
VALUE_READERS = {
    "q_BT": Fact("reads q", "an algorithm that reads Q of every token", "algo=cql", "algo"),
    "implicit_q_BT": Fact(
        "reads implicit q", "an algorithm that reads Q in addition to V", "algo=ilql", "algo"
    ),
    "cost_value_BT": Fact(
        "reads cost values", "an algorithm that reads the critic's values of costs", "algo=safe_rlhf", "algo"
    ),
}
READS_TARGETS = Fact(
    "reads targets",
    "an algorithm that learns values by temporal differences",
    "an advantage that reads the values of slow weights, such as algo/advantage=archer",
    "algo",
)
READS_OPPONENT = Fact(
    "reads opponent",
    "an algorithm that compares the policy's episodes with an opponent's",
    "algo=xpo or algo=nash_md",
    "algo",
)
TRAINS_POLICY = Fact("trains policy", "an algorithm that trains a policy", "algo=grpo or algo=sft", "algo")
TRAINS_SCORES = Fact(
    "trains scores",
    "an algorithm that trains a reward model",
    "algo=bradley_terry or algo=process_reward",
    "algo",
)
READS_STEP_LABELS = Fact(
    "reads step labels",
    "an algorithm that reads a label for every turn",
    "algo=process_reward algo/label=so_far",
    "algo",
)
LEARNS_COSTS = Fact("learns costs", "an algorithm that learns to predict costs", "algo=cost_model", "algo")
LEARNS_REFERRED = Fact(
    "learns referred", "an algorithm that compares an answer with a reference answer", "algo=polar", "algo"
)
READS_REFERENCE_REWARDS = Fact(
    "reads reference rewards",
    "an algorithm that compares a reward with those of the reference",
    "algo=qrpo algo/advantage=reference_quantile",
    "algo",
)
READS_COSTS = Fact(
    "reads costs",
    "an algorithm that reads the costs of episodes",
    "algo=safe_rlhf or algo/cost=lagrange",
    "algo",
)
READS_OLD_LOG_PROBS = Fact(
    "reads old log-probs",
    "an algorithm that compares the current log-probs of tokens with those from before the update",
    "algo/ratio=token and a clip rule",
    "algo",
)
SEPARATE_MEMBERS = Fact(
    "separate members",
    "an advantage that does not compare the episodes of a group",
    "algo/advantage=archer",
    "algo",
)

# ---------------------------------------------------------------------- filter, context, critic, reference
ALL_GROUPS = Fact("all groups", "every group that is played", "filter=none", "filter")
ASKS_FOR_GROUPS = Fact(
    "asks for groups", "a filter that asks for more groups", "filter=dynamic_sampling", "filter"
)
WHOLE_CONTEXT = Fact("whole context", "a context that keeps all earlier turns", "context=full", "context")
VALUES = Fact("values", "the values of a critic", "critic=separate or critic=shared", "critic")
# a head's columns in addition to V of states
VALUE_COLUMNS = {
    "q_BT": Fact("q", "Q of every token", "critic=conservative", "critic"),
    "implicit_q_BT": Fact("implicit q", "Q of every token in addition to V", "critic=implicit", "critic"),
    "cost_value_BT": Fact("cost values", "values of costs", "critic=costs", "critic"),
}
STILL_REFERENCE = Fact("still reference", "a reference that never changes", "reference=start", "reference")

# ---------------------------------------------------------------------- rollout, update, worker, processes
GROUP_SIZE = Fact(
    "group size",
    "groups of {} episodes or more",
    "rollout.members >= {} (of recorded episodes: data=pairs or data=ranked)",
    "rollout",
)
GROUPS = Fact("groups", "{} groups in an iteration", "a higher rollout.prompts", "rollout")
STEPS = Fact(
    "steps", "{} optimizer steps in an iteration", "update=four_minibatches or update.epochs=2", "update"
)
UNITS = Fact("units", "{} rows in an iteration", "a lower update.minibatches, or play more", "rollout")
REPEATED = Fact("repeated", "tasks that are played again", "rollout.instances=128", "rollout")
IN_ORDER = Fact(
    "in order", "episodes that are played only after the previous update", "rollout.overlap=false", "rollout"
)
PLAYED_HERE = Fact(
    "played here",
    "episodes that are played in the training process",
    "worker=none and rollout.overlap=false",
    "worker",
)
ONE_PROCESS = Fact("one process", "one training process", "strategy=single", "strategy")
WHOLE_WEIGHTS = Fact(
    "whole weights",
    "all weights in each training process",
    "strategy=single or strategy=ddp",
    "strategy",
)
ONE_VERSION = Fact(
    "one version",
    "episodes that are all played with the same version of the weights",
    "worker=none and rollout.overlap=false",
    "worker",
)
UNSHAPED = Fact("unshaped", "returns that no reward part shapes", "reward=none", "reward")
NO_ADAPTERS = Fact("no adapters", "a model without adapters", "model/lora=none", "model/lora")
POLICY_ALONE = Fact(
    "policy alone", "evaluations in which no critic reweights the policy", "critic.beta=0", "critic.beta"
)
HELD_REFERENCE = Fact(
    "held reference",
    "a reference whose log-probs are computed in every update",
    "data.cache_reference=false",
    "data",
)
RECORDED = Fact(
    "recorded",
    "recorded episodes",
    "data=pairs data.path=FOLDER, where lit-agentrl collect wrote FOLDER",
    "data",
)
HELD_OUT = Fact("held out", "held-out episodes, on which it is validated", "data.held_out=0.2", "data")
COST_SCORES = Fact("cost scores", "episodes that are ranked by cost", "data.score=cost", "data")
REFERRED = Fact("referred", "answers that are read after a reference answer", "data=referred", "data")
REFERENCE_REWARDS = Fact(
    "reference rewards",
    "rewards of the reference for each prompt",
    "data=quantiles data.references=FOLDER, where lit-agentrl collect wrote FOLDER",
    "data",
)
NO_IMITATION = Fact("no imitation", "training without imitated rows", "data=rollouts", "data")
PLAYED = Fact("played", "episodes that are played in training", "data=rollouts", "data")

# ---------------------------------------------------------------------- env
STATE_KEYS = Fact(
    "state keys",
    "a game that identifies its states (state_key)",
    "a game with state keys, such as env=sokoban",
    "env",
)
COSTS = Fact(
    "costs",
    "a game whose steps report info['cost']",
    "a game with costs, such as env=frozen_lake env.game.thin_share=0.3, or reward=cost",
    "env",
)

# ---------------------------------------------------------------------- engine
FORK = Fact("fork", "an engine that can fork episodes", "engine=native", "engine")
ENTROPIES = Fact("entropies", "an engine that records entropies", "engine=native", "engine")
PLAYS_REFERENCE = Fact(
    "plays reference", "an engine that can play with the reference", "engine=native", "engine"
)
TOKEN_IDS = Fact(
    "token ids",
    "an engine that returns token ids",
    "engine=native, or engine=openai engine.mode=tokens",
    "engine",
)
TAKES_WEIGHTS = Fact(
    "takes weights",
    "an engine that receives the trained weights",
    "engine=native, or engine=openai with engine.weights_folder",
    "engine",
)
EXACT_LOG_PROBS = Fact(
    "exact log-probs",
    "an engine that records the log-probs of the trainer's own weights",
    "engine=native",
    "engine",
)
RUNS_CRITIC = Fact("runs critic", "an engine that computes with the critic", "engine=native", "engine")
