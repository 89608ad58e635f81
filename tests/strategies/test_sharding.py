"""Networks cut up over two processes compute, are saved and are read as whole ones."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy
from torch.distributed.tensor import DTensor

from lit_agentrl.distributed import StrategyHooks
from lit_agentrl.models.policy import get_named_weights
from lit_agentrl.strategies import sharding
from lit_agentrl.strategies.background import copy_to_host
from lit_agentrl.strategies.checkpoint_io import AtomicIO, CheckpointError, load_progress
from lit_agentrl.strategies.fsdp import DTYPES, FSDP
from tests.conftest import tiny_network
from tests.strategies.ranks import Check, assert_passed, start

RANKS = 2


def mesh() -> DeviceMesh:
    return init_device_mesh("cpu", (RANKS,), mesh_dim_names=("data_parallel",))


def tokens() -> torch.Tensor:
    return torch.randint(0, 200, (4, 12), generator=torch.Generator().manual_seed(0))


def loss_of(network: Any, tokens_BT: torch.Tensor) -> torch.Tensor:
    loss: torch.Tensor = network(input_ids=tokens_BT, use_cache=False).logits.log_softmax(-1)[..., 7].mean()
    return loss


def cut(network: Any, **options: Any) -> Any:
    sharding.shard(network, mesh(), precision=MixedPrecisionPolicy(), **options)
    return network


def as_one_process_trains(folder: Path) -> None:
    """Gradients, norm and a step of AdamW against the whole batch in one process, with each way of training."""
    for family in ("llama", "gpt2"):
        for options in ({}, {"recompute_activations": True}, {"reshard_after_forward": False}):
            whole = tiny_network(family)
            network = cut(tiny_network(family), **options)
            mine = tokens()[dist.get_rank() :: RANKS]
            loss_of(whole, tokens()).backward()
            with sharding.skip_gradient_sync([network]):
                (loss_of(network, mine[:1]) / 2).backward()
            (loss_of(network, mine[1:]) / 2).backward()
            for (name, theirs), own in zip(whole.named_parameters(), network.parameters(), strict=True):
                assert isinstance(own, DTensor), name
                gap = (own.grad.full_tensor() - theirs.grad).abs().max()
                assert gap <= 1e-6 * max(1.0, float(theirs.grad.abs().max())), (name, float(gap))
            optimizers = [torch.optim.AdamW(n.parameters(), lr=1e-2) for n in (whole, network)]
            for optimizer in optimizers:
                optimizer.step()
            saved = sharding.gather_tensors(optimizers[1].state_dict())
            moments = [entry["exp_avg"] for entry in saved["state"].values()]
            assert all(
                a.data_ptr() == b.data_ptr() for a, b in zip(moments, copy_to_host(moments), strict=True)
            )
            other = optimizers[0].state_dict()
            assert saved["param_groups"] == other["param_groups"]
            for number, entries in other["state"].items():
                for name, value in entries.items():
                    torch.testing.assert_close(saved["state"][number][name], value, atol=1e-6, rtol=1e-4)


def without_collectives(folder: Path) -> None:
    """Within `gather_units` ranks call the network unequally often, also before any other forward; then train on."""
    network, whole = cut(tiny_network()), tiny_network()
    for _ in range(2):
        with sharding.gather_units(network, reshard_after_forward=True), torch.no_grad():
            for _ in range(1 + 3 * dist.get_rank()):
                out = network(input_ids=tokens(), use_cache=False).logits
            assert not any(isinstance(p, DTensor) for p in network.parameters())
        assert torch.equal(out, whole(input_ids=tokens(), use_cache=False).logits)
        assert all(isinstance(p, DTensor) for p in network.parameters())
        for each in (network, whole):
            loss_of(each, tokens()).backward()
            torch.optim.SGD(each.parameters(), lr=0.5).step()


def tied_weights_stay_one(folder: Path) -> None:
    """What is exported is the network that was cut up: class, files, tied weights; with the weights of now."""
    plain = tiny_network()
    plain.config.tie_word_embeddings = True
    plain.tie_weights()
    network = copy.deepcopy(plain)
    structure = sharding.copy_structure(network)
    cut(network)
    for each in (plain, network):
        loss_of(each, tokens()).backward()
        torch.optim.SGD(each.parameters(), lr=0.5).step()
    full: Any = sharding.fill_structure(structure, network, keep=dist.get_rank() == 0)
    if dist.get_rank() == 1:
        assert full is None
        return
    for name, each in (("whole", plain), ("cut", full)):
        each.save_pretrained(folder / name)
    files = sorted(path.name for path in (folder / "whole").iterdir())
    assert files == sorted(path.name for path in (folder / "cut").iterdir())
    assert (folder / "whole" / "config.json").read_text() == (folder / "cut" / "config.json").read_text()
    again = type(plain).from_pretrained(folder / "cut")
    for (name, a), b in zip(plain.named_parameters(), again.parameters(), strict=True):
        torch.testing.assert_close(a, b, atol=1e-6, rtol=1e-5, msg=name)


def a_copy_is_whole_everywhere(folder: Path) -> None:
    """What a worker of each rank is given: tied weights once, in the precision that gathered ones compute in."""
    plain = tiny_network()
    plain.config.tie_word_embeddings = True
    plain.tie_weights()
    with_copies = {dtype: FSDP(compute_dtype=dtype) for dtype in DTYPES}
    for dtype, strategy in with_copies.items():
        network = copy.deepcopy(plain)
        strategy._structures[id(network)] = sharding.copy_structure(network)
        cut(network)
        full = strategy.hooks.unshard_on_every_rank(network)
        assert not sharding.find_units(full) and full is not network
        found, expected = get_named_weights(full), get_named_weights(plain)
        assert found.keys() == expected.keys()
        for name, parameter in plain.named_parameters():
            kind = DTYPES[dtype] or torch.float32
            assert torch.equal(found[name], parameter.detach().to(kind)) and found[name].dtype == kind
    network = copy.deepcopy(plain)
    assert StrategyHooks().unshard_on_every_rank(network) is network


def checkpoint_of(network: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    state = {"state_dict": sharding.get_state(network), "optimizer_states": [optimizer.state_dict()]}
    return {**state, "epoch": 3, "nested": {"list": [1, torch.arange(3)]}}


def folders_are_whole(folder: Path) -> None:
    """Written by two ranks; read by two as shares; damage is noticed by both and the predecessor is used."""
    network = cut(tiny_network())
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-2)
    io = AtomicIO()
    io.mesh = mesh()
    path = folder / "last.ckpt"
    expected = []
    for _ in range(2):
        loss_of(network, tokens()).backward()
        optimizer.step()
        io.save_sharded(checkpoint_of(network, optimizer), path)
        expected.append(copy.deepcopy(sharding.gather_tensors(checkpoint_of(network, optimizer))))
    torch.save(expected, folder / f"expected{dist.get_rank()}.pt")
    for wanted, is_damaged in ((expected[1], False), (expected[0], True)):
        if is_damaged:
            if dist.get_rank() == 0:
                file = next(path.glob("__1_*"))
                content = bytearray(file.read_bytes())
                content[len(content) // 2] ^= 1
                file.write_bytes(content)
            dist.barrier()
        found = io.load_checkpoint(path)
        assert isinstance(next(iter(found["state_dict"].values())), DTensor)
        found = sharding.gather_tensors(found)
        for name, value in wanted["state_dict"].items():
            assert torch.equal(found["state_dict"][name], value), name
        for number, entries in wanted["optimizer_states"][0]["state"].items():
            for name, value in entries.items():
                assert torch.equal(found["optimizer_states"][0]["state"][number][name], value)
        assert found["epoch"] == 3 and torch.equal(found["nested"]["list"][1], torch.arange(3))


def failures_are_shared(folder: Path) -> None:
    """One rank cannot write: both are told why, and what was there stays."""
    network = cut(tiny_network())
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-2)
    io = AtomicIO()
    io.mesh = mesh()
    path = folder / "last.ckpt"
    io.save_sharded(checkpoint_of(network, optimizer), path)
    from torch.distributed.checkpoint import FileSystemWriter

    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    with pytest.MonkeyPatch.context() as patch:
        if dist.get_rank() == 1:
            patch.setattr(FileSystemWriter, "write_data", full)
        with pytest.raises(CheckpointError, match=r"last\.ckpt: No space left on device; earlier"):
            io.save_sharded(checkpoint_of(network, optimizer), path)
    dist.barrier()
    assert sorted(p.name for p in folder.glob("last*")) == ["last.ckpt"]
    assert io.load_checkpoint(path)["epoch"] == 3


CHECKS = [
    as_one_process_trains,
    without_collectives,
    tied_weights_stay_one,
    a_copy_is_whole_everywhere,
    folders_are_whole,
    failures_are_shared,
]


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ranks")
    start(CHECKS, folder)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("check", CHECKS)
def test_two_ranks(check: Check, done: Path) -> None:
    assert_passed(check, done)


@pytest.mark.slow
def test_a_folder_is_read_by_one_process_too(done: Path) -> None:
    tmp_path = assert_passed(folders_are_whole, done)
    # its newest was damaged: one process, which knows nothing of ranks, reads the predecessor whole
    expected = torch.load(tmp_path / "expected0.pt")[0]
    with pytest.warns(UserWarning, match="damaged; using its predecessor"):
        found = AtomicIO().load_checkpoint(tmp_path / "last.ckpt")
    for name, value in expected["state_dict"].items():
        assert type(found["state_dict"][name]) is torch.Tensor
        assert torch.equal(found["state_dict"][name], value), name
    assert "epoch" in load_progress(tmp_path / "last.ckpt")
    # a file takes the place of the folder, and keeps it as predecessor until there is another
    AtomicIO().save_checkpoint({"epoch": 4}, tmp_path / "last.ckpt.prev")
    AtomicIO().save_checkpoint({"epoch": 5}, tmp_path / "last.ckpt.prev", {"keep": 1})
    assert AtomicIO().load_checkpoint(tmp_path / "last.ckpt.prev")["epoch"] == 5
    assert not (tmp_path / "last.ckpt.prev.prev").exists()
    assert load_progress(tmp_path / "last.ckpt")["epoch"] == 5


def test_a_network_without_blocks_is_refused() -> None:
    with pytest.raises(ValueError, match="Sequential.*no blocks.*choose strategy=ddp"):
        sharding.find_blocks(nn.Sequential(nn.ModuleList([nn.Linear(2, 2)])))
    assert sharding.find_blocks(nn.Linear(2, 1)) == []
