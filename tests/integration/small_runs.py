"""Small runs of every kind, by the name of what they have: for whoever kills them, or divides them among processes.

Every structure of ``conf/algo/structure`` is there, also one that nobody has named here.
"""

from __future__ import annotations

from collections.abc import Mapping

from lit_agentrl.paths import list_options
from tests.integration.taught import TAUGHT

BASE = {
    "rollout.prompts": "2", "rollout.members": "4", "rollout.max_reply_tokens": "20", "trainer.max_epochs": "3",
    "rollout.max_context_tokens": "300", "val.episodes": "2", "val.every": "1", "test.episodes": "2",
    "engine.num_slots": "16", "optim.lr": "1e-3", "callbacks.transcripts.every": "1", "trainer.accelerator": "cpu",
}  # fmt: skip
LAKE = "env=frozen_lake env.max_turns=3"
WAVES = f"{LAKE} filter=dynamic_sampling algo.structure.max_waves=3"
SETTINGS = {
    "grpo, four minibatches": f"{LAKE} update=four_minibatches",
    "starpo": f"{LAKE} algo=starpo",
    "dapo, waves": f"{WAVES} algo=dapo",
    "parts that learn": f"{LAKE} reward=[count,rnd,delta,potential]",
    "LoRA": "env=bandit model/lora=default model.lora.r=4 algo/kl=loss_k3",
    "overlap": "env=bandit rollout.overlap=true update=four_minibatches",
    "overlap, waves, rnd": f"{WAVES} rollout.overlap=true reward=[rnd]",
    "context=window, ppo": f"{LAKE} context=window algo=ppo",
    "context=single": f"{LAKE} context=single",
    "two processes, rnd": f"{LAKE} algo=ppo reward=[rnd] strategy=ddp trainer.devices=2",
}
SHARDED = "two processes, sharded checkpoints"
FURTHER = {
    SHARDED: "env=bandit algo=ppo strategy=fsdp strategy.sharded_checkpoints=true trainer.devices=2",
    **{
        f"workers, {kind}": f"{LAKE} worker={kind} worker.count=2 worker.share=1"
        for kind in ("process", "ray")
    },
}
ONE_TURN = "env=sokoban env.max_turns=1 env.max_actions_per_turn=10 algo=ufo rollout.max_reply_tokens=40"
HARD = "env=sokoban env.max_turns=2 env.game.lengths=uniform algo=ghpo rollout.members=2 rollout.max_reply_tokens=40"
OFF_POLICY = "algo=archer critic=expectile critic.target_rate=0.5"
OF_LEVELS = "model/lora=levels model.lora.r=4"
ACT = {  # what has a structure act in every iteration: trees, a filled buffer, hints, tries, lessons, a moved policy
    "branch": f"{LAKE} algo=arpo",
    "experience": f"{TAUGHT} engine.url={{url}}",
    "forget": f"{LAKE} algo=eepo algo.structure.threshold=9",
    "greedy": f"{LAKE} algo=remax",
    "hint": HARD,
    "mcts": f"{LAKE} algo/structure=mcts rollout.members=6",
    "memory": f"{LAKE} {OFF_POLICY}",
    "opponent": f"{LAKE} algo=nash_md algo.structure.mix=0.5",
    "refill": WAVES,
    "replay": f"{LAKE} algo=arpo_replay rollout.instances=2 filter=none",
    "retry": ONE_TURN,
    "tree": f"{LAKE} algo=tree_grpo",
    "two_level": f"{LAKE} algo=hrl_tar algo.structure.trains=alternate",
}
EACH = {  # every structure there is, one that is not named above as well
    path.stem: ACT.get(path.stem, f"{LAKE} algo/structure={path.stem}")
    for path in list_options("algo/structure")
}
assert ACT.keys() <= EACH.keys()
VARIANTS = {
    "tree, overlap": f"{EACH['tree']} rollout.overlap=true",
    "mcts, overlap": f"{EACH['mcts']} rollout.overlap=true",
    "mcts with a critic": f"{LAKE} algo=mcts_ppo rollout.members=6",
    "pairs with a critic": f"{LAKE} algo=svpo rollout.members=6",
    "replay, overlap": f"{EACH['replay']} rollout.overlap=true",
    "hint, overlap": f"{HARD} rollout.overlap=true",
    "retry, overlap": f"{ONE_TURN} rollout.overlap=true",
    "forget, two processes": f"{EACH['forget']} strategy=ddp trainer.devices=2",
    "memory, overlap": f"{EACH['memory']} rollout.overlap=true update.minibatches=2",
    "two levels, overlap": f"{EACH['two_level']} rollout.overlap=true",
    "two levels, two adapters": f"{EACH['two_level']} {OF_LEVELS}",
    "two adapters, overlap": f"{EACH['two_level']} {OF_LEVELS} rollout.overlap=true",
    "values, iql": f"{LAKE} algo=iql update.minibatches=2",
    "values, cql": f"{LAKE} algo=cql update.minibatches=2",
    "values, ilql": f"{LAKE} algo=ilql update.minibatches=2",
    "opponent, pairs": f"{LAKE} algo=xpo algo.alpha=0.01 update.minibatches=2",
    "costs, safe_rlhf": f"{LAKE} env.game.thin_share=0.5 algo=safe_rlhf update.minibatches=2",
}
STRUCTURES = {**EACH, **VARIANTS}
CORES = "a core each"
CORE_EACH = (  # two micro-batches or more in each iteration, or a lane would stand still
    f"{LAKE} filter=none worker=process worker.count=2 worker.share=1 update.lanes=2 update.tokens_per_microbatch=300"
)
THREAD = "checkpoints by the thread"  # all but the first and the last of six iterations
BY_THREAD = f"{LAKE} update=four_minibatches trainer.max_epochs=6 callbacks.last.every=1"
OF_KIND = {**SETTINGS, **FURTHER, **STRUCTURES, CORES: CORE_EACH, THREAD: BY_THREAD}


def small(options: str, base: Mapping[str, str] = BASE) -> list[str]:
    """A run's own options, and those of ``base`` that mean something in it."""
    idle = ("optim.",) * ("training_free" in options) + ("engine.",) * ("engine=openai" in options)
    common = {name: value for name, value in base.items() if not name.startswith(idle)}
    own = dict(option.split("=", 1) for option in options.split())
    return [f"{name}={value}" for name, value in {**common, **own}.items()]
