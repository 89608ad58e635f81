"""The policy module on crafted batches without a Trainer, on one process or on ranks played by threads."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields
from functools import lru_cache, partial
from types import SimpleNamespace
from typing import Any, TypeVar

import pytest
import torch
from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf
from torch import Tensor
from transformers import GPT2Config, GPT2LMHeadModel

from lit_agentrl import distributed
from lit_agentrl.batch import StepBatch, TrajectoryBatch
from lit_agentrl.models.logprobs import score_tokens
from lit_agentrl.models.policy import Policy
from lit_agentrl.modules.policy import PolicyModule
from lit_agentrl.paths import find_config
from lit_agentrl.rl.policy.algorithm import Algorithm
from lit_agentrl.update.reference import Reference
from lit_agentrl.update.reference_cache import ReferenceCache
from lit_agentrl.update.settings import OptimSettings, UpdateSettings
from tests.rl.ragged import ragged

T = TypeVar("T")


@contextmanager
def float64() -> Iterator[None]:
    """Double precision by default, and one thread: the matrices are too small for two."""
    dtype, threads = torch.get_default_dtype(), torch.get_num_threads()
    torch.set_default_dtype(torch.float64)
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_default_dtype(dtype)
        torch.set_num_threads(threads)


class BareModule(PolicyModule):
    """The module with what a Trainer provides: optimizers, schedules and a backward pass."""

    def prepare(self, iterations: int = 1) -> None:
        self._fake_trainer = SimpleNamespace(max_epochs=iterations, callbacks=[])
        built = self.configure_optimizers()
        self._built_optimizers = [each["optimizer"] for each in built]
        self._built_schedules = [each["lr_scheduler"]["scheduler"] for each in built]

    @property
    def trainer(self) -> Any:
        return self._fake_trainer

    def optimizers(self, use_pl_optimizer: bool = True) -> Any:
        return self._built_optimizers

    def lr_schedulers(self) -> Any:
        return self._built_schedules

    def manual_backward(self, loss: Tensor, *args: Any, **kwargs: Any) -> None:
        loss.backward(*args, **kwargs)


def gpt2(seed: int = 0) -> GPT2LMHeadModel:
    """One layer in torch's default precision: nothing in it is cast to float32."""
    torch.manual_seed(seed)
    config = GPT2Config(
        vocab_size=50, n_embd=8, n_layer=1, n_head=2, n_positions=64, bos_token_id=1, eos_token_id=1,
        initializer_range=0.3,
    )  # fmt: skip
    return GPT2LMHeadModel(config).eval()


def build(
    algorithm: Algorithm, *, critic: str | DictConfig | None = None, optim: Any = None,
    reference: Reference | None = None, kept: ReferenceCache | None = None, **update: Any,
) -> BareModule:  # fmt: skip
    """A module whose policy is `gpt2`, with a critic that has something to say where one is needed."""
    make_critic = None
    if critic is None:
        beside = {"q_BT": "conservative", "implicit_q_BT": "implicit", "cost_value_BT": "costs"}
        critic = next((name for column, name in beside.items() if algorithm.needs(column)), "separate")
    if algorithm.needs("value_BT"):
        if isinstance(critic, str):
            critic = OmegaConf.load(find_config(f"critic/{critic}.yaml"))
            critic.grad_clip = 1e9
        make_critic = instantiate(critic)
    module = BareModule(
        Policy(network=gpt2(), tokenizer=None, name="gpt2"), objective=algorithm,
        update=UpdateSettings(**{"grad_clip": 1e9, "max_logp_gap": 1e9, **update}),
        optim=optim or OptimSettings(optimizer=torch.optim.SGD, lr=1e-30), critic=make_critic, reference=reference,
        reference_cache=kept,
    )  # fmt: skip
    if module.critic is not None:
        torch.nn.init.normal_(module.critic.head.weight, generator=torch.Generator().manual_seed(1))
    module.prepare()
    return module


def elsewhere(module: BareModule) -> BareModule:
    """As if training had begun elsewhere: no KL is 0."""
    for reference in module.updater.networks.frozen:
        for weight in reference.parameters():
            weight.mul_(0.9)
    return module


@lru_cache
def off_policy(seed: int = 0, distance: float = 1.0) -> TrajectoryBatch:
    """22 rows in 6 groups, of which one has a single member and one equal returns.

    Recorded log-probs differ from those of `gpt2` by 0.4 nats and at every ninth token by 2, both ways, times
    ``distance``.
    """
    tensors = ragged(seed, sizes=(1, 5, 4, 3, 6, 3))
    rows = {"tokens_BT": tensors["tokens_BT"], "is_action_BT": tensors["is_action_BT"]}
    with torch.no_grad():
        logp_BT = score_tokens(gpt2(), **rows).logp_BT
    draw = torch.Generator().manual_seed(seed)
    noise_BT = 0.4 * torch.randn(logp_BT.shape, generator=draw)
    place_BT = torch.arange(logp_BT.numel()).reshape(logp_BT.shape)
    noise_BT = noise_BT + 2.0 * (place_BT % 9 == 0) - 2.0 * (place_BT % 9 == 4)
    is_equal_B = tensors["group_B"] == 3
    last_B = tensors["is_turn_end_BT"].int().cumsum(1).argmax(1)  # the last turn end
    reward_BT = tensors["reward_BT"].nan_to_num(0.0)
    surplus_B = torch.where(is_equal_B, reward_BT.sum(1) - 0.5, 0.0)
    reward_BT[torch.arange(len(last_B)), last_B] -= surplus_B
    tensors |= {
        "sampler_entropy_BT": tensors["sampler_entropy_BT"].nan_to_num(0.0),
        "sampler_logp_BT": torch.where(tensors["is_action_BT"], logp_BT + distance * noise_BT, 0.0),
        "reward_BT": reward_BT,
        "cost_BT": tensors["cost_BT"].nan_to_num(0.0),
        "return_B": torch.where(is_equal_B, 0.5, tensors["return_B"]),
        "tokens_BT": torch.where(tensors["is_real_BT"], tensors["tokens_BT"], 0),
    }
    return TrajectoryBatch(**{field.name: tensors[field.name] for field in fields(TrajectoryBatch)})


def step(module: PolicyModule, batch: TrajectoryBatch, iteration: int = 0) -> None:
    groups = len(torch.unique(batch.group_B))
    module.training_step(
        StepBatch(iteration, [], [], [], trajectories=batch, num_groups=groups, num_kept_groups=groups), 0
    )


def gradient(module: PolicyModule) -> Tensor:
    """All gradients after a step, the critic's too, as one vector."""
    return torch.cat([_grad(p).flatten() for p in module.parameters()])


def _grad(parameter: Tensor) -> Tensor:
    return torch.zeros_like(parameter) if parameter.grad is None else parameter.grad.detach().clone()


class ThreadedDist:
    """The part of ``torch.distributed`` that ``collective`` uses, between threads."""

    ReduceOp = torch.distributed.ReduceOp

    def __init__(self, size: int) -> None:
        self._size = size
        self._here = threading.local()
        self._barrier = threading.Barrier(size, timeout=60)
        self._slots: list[Tensor] = [torch.zeros(())] * size

    def is_available(self) -> bool:
        return True

    def is_initialized(self) -> bool:
        return True

    def get_world_size(self) -> int:
        return self._size

    def get_rank(self) -> int:
        rank: int = self._here.rank
        return rank

    def all_gather(self, parts: list[Tensor], value: Tensor) -> None:
        everyone = self._exchange(value)
        assert all(other.shape == value.shape and other.dtype == value.dtype for other in everyone)
        for part, other in zip(parts, everyone, strict=True):
            part.copy_(other)

    def all_reduce(self, value: Tensor, op: Any = ReduceOp.SUM) -> None:
        everyone = torch.stack(self._exchange(value))
        value.copy_(everyone.amax(0) if op == self.ReduceOp.MAX else everyone.sum(0))

    def all_to_all_single(self, got: Tensor, value: Tensor, received: list[int], sent: list[int]) -> None:
        # what each rank sends to each: the sizes first, since they are known to the two concerned alone
        sizes = [each.tolist() for each in self._exchange(torch.tensor(sent))]
        everyone = self._exchange(value)
        here = self._here.rank
        parts = [rows.split(size)[here] for rows, size in zip(everyone, sizes, strict=True)]
        assert [len(part) for part in parts] == received and all(p.dtype == got.dtype for p in parts)
        got.copy_(torch.cat(parts))

    def _exchange(self, value: Tensor) -> list[Tensor]:
        self._slots[self._here.rank] = value.detach().clone()
        self._barrier.wait()
        everyone = list(self._slots)
        self._barrier.wait()  # nobody writes again before all have read
        return everyone

    def play(self, work: Sequence[Callable[[], T]]) -> list[T]:
        """Runs one function per rank at once; the first error stops all and is raised."""
        results: list[Any] = [None] * self._size
        errors: list[Exception] = []

        def on_rank(rank: int) -> None:
            self._here.rank = rank
            try:
                results[rank] = work[rank]()
            except Exception as error:
                errors.append(error)
                self._barrier.abort()

        threads = [threading.Thread(target=on_rank, args=(rank,)) for rank in range(self._size)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if errors:
            raise next((e for e in errors if not isinstance(e, threading.BrokenBarrierError)), errors[0])
        return results


def play_on_ranks(
    monkeypatch: pytest.MonkeyPatch, modules: Sequence[PolicyModule], shares: Sequence[TrajectoryBatch]
) -> Tensor:
    """The gradient that DDP would have: the mean over ranks."""
    dist = ThreadedDist(len(modules))
    work = [partial(step, module, share) for module, share in zip(modules, shares, strict=True)]
    with monkeypatch.context() as patch:
        patch.setattr(distributed, "dist", dist)
        dist.play(work)
    return torch.stack([gradient(module) for module in modules]).mean(0)
