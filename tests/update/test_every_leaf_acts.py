"""No option is silently ignored: each constant of each part changes what is learnt, or start-up refuses it.

The constants are those of the YAML files and those of the signatures behind them.  A constant acts if an
accepted value changes rewards, advantages, selection, loss or gradient on off-policy batches or, where that
takes more than one update, losses or weights over three iterations of the training module.  float64: even an
epsilon of 1e-6 is seen.
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Iterator
from functools import cache, partial
from typing import Any, Literal, NamedTuple

import pytest
import torch
import yaml
from hydra import compose
from hydra.errors import InstantiationException
from hydra.utils import get_object, instantiate
from omegaconf import DictConfig, ListConfig, OmegaConf
from torch import Tensor

from lit_agentrl.batch import TrajectoryBatch
from lit_agentrl.config.composition import initialize_hydra
from lit_agentrl.config.errors import UserError
from lit_agentrl.config.signatures import check_targets
from lit_agentrl.paths import list_options
from lit_agentrl.rl.binding import bind, try_out
from lit_agentrl.rl.objective import Objective
from lit_agentrl.rl.policy import filters
from lit_agentrl.update import critic as critics
from lit_agentrl.update.settings import OptimSettings
from tests.rewards.test_model import model as reward_model
from tests.rl.ragged import config_of, fresh, ragged
from tests.rl.test_algo_configs import ALGORITHMS, OPTIONS, UNTRAINED, composed, host_of, hosted
from tests.update.bare import build, float64, off_policy, step

pytestmark = [pytest.mark.slow, pytest.mark.sweep]

FILTERS = [file.stem for file in list_options("filter")]
CRITICS = [file.stem for file in list_options("critic") if file.stem != "none"]
# constants under which an option acts on these batches, where its own do not
SCALES = {
    # a target above the entropy of the batch, so that the bonus acts, and steps that reach max_coef
    "entropy=adaptive": ("entropy.target=20.0", "entropy.delta=0.02"),
    # the KL is 0.002 nats after the first iteration and 0.015 after the second
    # returns of these batches differ by more than 0.3 points
    "pairing=best_worst": ("pairing.min_gap=2.0",),
    "pairing=equal_length": ("pairing.min_gap=2.0", "pairing.max_difference=0"),
    "cost=lagrange": ("cost.max_coef=1.02",),  # which the first step leads to
    "kl_controller=threshold": ("kl_controller.low_kl=0.005", "kl_controller.high_kl=0.012"),
}
# leaves without effect on these batches, (of which algorithm, which leaf), each with its reason
IDLE: dict[tuple[str, str], str] = {
    **{(name, "algo.name"): "a label in logs" for name in ALGORITHMS},
    **{
        (name, "algo.over"): "each group, or state, has one pair"
        for name in ("online_dpo", "online_ipo", "step_dpo", "svpo")
    },
    **{(name, "algo.pairing.min_gap"): "best and worst lie apart" for name in ("online_dpo", "online_ipo")},
    ("svpo", "algo.nll.of"): "the best of each state is the chosen side of its one pair",
    ("rebel", "algo.pairing.min_gap"): "it is refused beside ties",
    ("safe_rlhf", "algo.cost.max_coef"): "three iterations do not lead to it",
    ("raft_pp", "algo.clip.lower"): "advantages are 0 or 1; the lower bound holds ratios of negative ones",
}
# choices that no type names
CHOICES: dict[str, list[Any]] = {"reference_dtype": ["bfloat16"]}
REFUSALS = (InstantiationException, UserError, ValueError)


@pytest.fixture(autouse=True, scope="module")
def double() -> Iterator[None]:
    with float64():
        yield


class Leaf(NamedTuple):
    """A constant: where it stands, what it is, and other values to try."""

    path: str
    value: Any
    others: list[Any]
    must_be_refused: list[Any]


def leaves(node: DictConfig, path: str) -> Iterator[Leaf]:
    """The constants of a part and of the parts within it, those that only the signature names included."""
    target = get_object(node["_target_"])
    given = {name: value for name, value in node.items() if not str(name).startswith("_")}
    hints: dict[str, Any] = {}
    if target.__module__.startswith("lit_agentrl."):
        hints = typing.get_type_hints(inspect.unwrap(target))
        for name, parameter in inspect.signature(target).parameters.items():
            if not name.endswith(("_BT", "_B", "_BK")) and parameter.default is not inspect.Parameter.empty:
                given.setdefault(name, parameter.default)
    for name, value in given.items():
        if isinstance(value, DictConfig) and "_target_" in value:
            yield from leaves(value, f"{path}.{name}")
        elif not callable(value) and value != {}:
            value = tuple(value) if isinstance(value, ListConfig) else value
            others, wrong = candidates(value, hints.get(str(name)))
            yield Leaf(f"{path}.{name}", value, [*CHOICES.get(str(name), []), *others], wrong)


def candidates(value: Any, hint: Any) -> tuple[list[Any], list[Any]]:
    """Other values near and far, of which some should be accepted; and values that never may be."""
    if isinstance(value, bool):
        return [not value], ["perhaps"]
    if isinstance(value, str):
        if typing.get_origin(hint) is Literal:
            return [choice for choice in typing.get_args(hint) if choice != value], ["another"]
        return ["another"], []
    if isinstance(value, tuple):
        return [tuple(0.5 * each for each in value)], []
    if value is None:
        return (["no/such/thing"], []) if hint == (str | None) else ([0.1, 1], [])
    if isinstance(value, int):
        return [value + 3, value - 1, value + 1, value // 2], ["many"]
    near = [0.5 * value, value + 0.01, value + 0.3, value - 0.3]
    return [*near, 1e-3 * value, 100 * value], ["much"]


def idle_leaves(
    leaf_source: Iterator[Leaf],
    observe: Callable[[str, Any], list[Tensor]],
    deeper: Callable[[str, Any], Any],
) -> list[str]:
    """The leaves that nothing depends on.

    Both functions set a leaf and say what comes of it; the empty path leaves all as it is.
    """
    idle = []
    for leaf in leaf_source:
        for value in leaf.must_be_refused:
            with pytest.raises(REFUSALS):
                observe(leaf.path, value)
        if not acts(leaf, observe) and not acts(leaf, deeper):
            idle.append(leaf.path)
    return idle


def acts(leaf: Leaf, observe: Callable[[str, Any], list[Tensor]]) -> bool:
    """Whether an accepted value changes something, or all are refused."""
    before = observe("", None)
    num_accepted = 0
    for value in leaf.others:
        try:
            after = observe(leaf.path, value)
        except REFUSALS:
            continue
        num_accepted += 1
        if differ(before, after):
            return True
    return num_accepted == 0 and bool(leaf.others or leaf.must_be_refused)


def differ(first: list[Tensor], second: list[Tensor]) -> bool:
    if [each.shape for each in first] != [each.shape for each in second]:
        return True
    return any(
        not torch.allclose(a.double(), b.double(), rtol=1e-12, atol=1e-14, equal_nan=True)
        for a, b in zip(first, second, strict=True)
    )


def known(name: str) -> set[str]:
    return {path for algorithm, path in IDLE if algorithm == name}


# ---------------------------------------------------------------------- one loss, and three iterations
def one_loss(algorithm: Objective) -> list[Tensor]:
    """Everything that the mix makes of two batches, up to the gradient in log-probs, entropies and KLs."""
    return [tensor for seed in (0, 1) for tensor in _one_loss(algorithm, ragged(seed))]


def _one_loss(objective: Objective, batch: dict[str, Tensor]) -> list[Tensor]:
    objective.try_out(TrajectoryBatch.make_toy().to_dict())
    prepared = objective.prepare(batch)
    made = [*prepared.values(), torch.tensor(objective.requirements.prompt_factor)]
    columns = {
        name: tensor for name, tensor in (batch | prepared).items() if tensor.dim()
    }  # a scalar is a metric
    tensors = {name: tensor[prepared["keep_B"]] for name, tensor in columns.items()}
    carry_gradient = ("logp_BT", "entropy_BT", "ref_kl_BT")
    for name in carry_gradient:
        tensors[name] = tensors[name].detach().requires_grad_()
    loss, _ = objective.loss(tensors | objective.count(tensors))
    loss.backward()
    grads = [tensors[name].grad for name in carry_gradient]
    return [*made, loss.detach(), *(grad for grad in grads if grad is not None)]


def three_iterations(algorithm: Objective, critic: Any = None) -> list[Tensor]:
    """Losses, and weights, the critic's too, after three iterations of two steps on one batch."""
    optim = OptimSettings(optimizer=torch.optim.SGD, lr=0.05)
    module = build(algorithm, critic=critic, optim=optim, minibatches=2, tokens_per_microbatch=10**6)
    losses = []
    for iteration in range(3):
        step(module, off_policy(), iteration)
        losses.append(torch.tensor(module.row["train/loss"]))
    return [*losses, *(parameter.detach() for parameter in module.parameters())]


def changed(config: DictConfig, path: str, value: Any) -> DictConfig:
    """The configuration with one leaf set, after the checks of start-up."""
    config = config.copy()
    if path:
        OmegaConf.update(config, path, list(value) if isinstance(value, tuple) else value, force_add=True)
    check_targets(config)
    return config


def idle_of_mix(config: DictConfig, node_path: str) -> list[str]:
    def watch(observe: Callable[[Objective], list[Tensor]]) -> Callable[[str, Any], list[Tensor]]:
        return cache(lambda path, value: observe(instantiate(changed(config, path, value).algo)))

    node = OmegaConf.select(config, node_path)
    return idle_leaves(leaves(node, node_path), watch(one_loss), watch(three_iterations))


@pytest.mark.parametrize("option", OPTIONS)
def test_every_option_of_every_axis(option):
    axis, stem = option.split("=")
    config = hosted(config_of(host_of(axis, stem)), option)
    for change in SCALES.get(option, ()):
        key, _, value = change.partition("=")
        OmegaConf.update(config.algo, key, yaml.safe_load(value))
    OmegaConf.resolve(config)
    # a gap is refused beside ties
    assert idle_of_mix(config, f"algo.{axis}") == ["algo.pairing.min_gap"] * (stem == "all_pairs_ties")


@pytest.mark.parametrize("name", [name for name in ALGORITHMS if name not in UNTRAINED])
def test_every_named_algorithm(name):
    assert set(idle_of_mix(config_of(name), "algo")) == known(name)


# ---------------------------------------------------------------------- filters
@pytest.mark.parametrize("name", FILTERS)
def test_every_filter(name):
    config = composed(f"filter={name}")
    OmegaConf.resolve(config)

    def selected(path: str, value: Any) -> list[Tensor]:
        part = instantiate(changed(config, path, value).filter)
        try_out("filter", part, filters.Selection, TrajectoryBatch.make_toy().to_dict())
        made = []
        for seed in range(3):
            batch = ragged(seed, sizes=(3, 4, 5, 3, 4, 3))
            # spreads of 0 and of 0.1 to 1.5 points
            batch["return_B"] = (
                batch["return_B"] * torch.tensor([0.1, 0.4, 0.8, 0.0, 1.0, 1.5])[batch["group_B"]]
            )
            found = bind(part, batch)
            made += [found.keep_groups, torch.tensor(found.want_more)]
        return made

    assert not idle_leaves(leaves(config.filter, "filter"), selected, selected)


# ---------------------------------------------------------------------- the critic
def in_float32(call: Callable[..., Any], *given: Any) -> Any:
    """Call with the default precision of a run, in which a model's fingerprint is that of its file."""
    torch.set_default_dtype(torch.float32)
    try:
        return call(*given)
    finally:
        torch.set_default_dtype(torch.float64)


@pytest.mark.parametrize("name", CRITICS)
def test_every_option_of_a_critic(name, tmp_path, monkeypatch):
    choices = [f"critic={name}"]
    if name == "reward_model":
        choices.append(f"critic.path={in_float32(reward_model, tmp_path)}")
        # the policy of these batches has no tokenizer to compare with that of the model
        monkeypatch.setattr(critics, "hash_tokenizer", lambda tokenizer: None)
        monkeypatch.setattr(critics, "load_model", partial(in_float32, critics.load_model))
    with initialize_hydra():
        config = OmegaConf.create({"critic": compose("train", overrides=choices).critic})

    @cache
    def after(path: str, value: Any) -> list[Tensor]:
        return three_iterations(
            fresh("safe_rlhf" if name == "costs" else "ppo"), changed(config, path, value).critic
        )

    assert any(leaf.path.startswith("critic.loss.") for leaf in leaves(config.critic, "critic"))
    # slow weights are of values learnt off-policy, and refused beside PPO: tests/update/test_slow.py; beta acts when
    # evaluations are played: tests/engines/test_reweighted.py
    idle = {*idle_leaves(leaves(config.critic, "critic"), after, after)}
    assert idle <= {"critic.target_rate", "critic.beta"}


# ---------------------------------------------------------------------- the test itself
def test_the_list_names_leaves_that_exist():
    for name, path in IDLE:
        assert path in {leaf.path for leaf in leaves(config_of(name).algo, "algo")}


def test_an_idle_leaf_is_found():
    """A constant that nothing reads, beside one that acts and one whose other values are all refused."""
    read = {"part.used": 1.0, "part.idle": 1.0, "part.choice": "a"}

    def observe(path: str, value: Any) -> list[Tensor]:
        values = read | {path: value}
        if values["part.choice"] != "a":
            raise ValueError("refused")
        return [torch.tensor(values["part.used"])]

    found = [Leaf(path, value, *candidates(value, type(value))) for path, value in read.items()]
    found = [leaf._replace(must_be_refused=[]) for leaf in found]
    assert idle_leaves(iter(found), observe, observe) == ["part.idle"]
    with pytest.raises(pytest.fail.Exception, match="DID NOT RAISE"):
        idle_leaves(iter([Leaf("part.idle", "b", [], ["no_such_choice"])]), observe, observe)
