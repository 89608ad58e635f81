"""oneDNN's products beside PyTorch's own: values, gradients, and when they are taken."""

from __future__ import annotations

import copy
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from lit_agentrl.models import onednn
from lit_agentrl.models.onednn import use_onednn_linears

pytestmark = pytest.mark.skipif(not onednn._has_onednn(), reason="torch was built without oneDNN")


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """The shapes that went through oneDNN."""
    made: list[tuple[int, ...]] = []
    product = onednn._multiply

    def counted(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        made.append(tuple(x.shape))
        return product(x, weight, bias)

    monkeypatch.setattr(onednn, "_multiply", counted)
    return made


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(("inputs", "outputs"), [(24, 72), (72, 24), (32, 32)])
@pytest.mark.parametrize("shape", [(300,), (3, 50), (2, 5, 30)])
def test_values_and_gradients_are_those_of_a_linear_layer(
    inputs: int, outputs: int, bias: bool, shape: tuple[int, ...], calls: list[tuple[int, ...]]
) -> None:
    layer = nn.Linear(inputs, outputs, bias=bias)
    with torch.no_grad():
        for number, parameter in enumerate(layer.parameters()):
            parameter.copy_(draw(*parameter.shape, seed=number))
    exact = copy.deepcopy(layer).double()
    x = draw(*shape, inputs, seed=5).requires_grad_()
    weights = draw(*shape, outputs, seed=6)
    with use_onednn_linears([layer]):
        out = layer(x)
    (out * weights).sum().backward()  # outside: the graph remembers
    wanted_x = x.detach().double().requires_grad_()
    wanted = exact(wanted_x)
    (wanted * weights.double()).sum().backward()
    assert len(calls) == 3
    for found, value in [(out, wanted), (x.grad, wanted_x.grad)]:
        torch.testing.assert_close(found.double(), value, atol=1e-4, rtol=1e-5)
    for one, other in zip(layer.parameters(), exact.parameters(), strict=True):
        assert one.grad is not None and other.grad is not None
        torch.testing.assert_close(one.grad.double(), other.grad, atol=2e-4, rtol=1e-5)


def test_only_the_gradients_that_are_needed(calls: list[tuple[int, ...]]) -> None:
    layer = nn.Linear(8, 16).requires_grad_(False)  # as under adapters
    x = draw(64, 8).requires_grad_()
    with use_onednn_linears([layer]):
        layer(x).sum().backward()
    assert len(calls) == 2 and layer.weight.grad is None and layer.bias.grad is None
    torch.testing.assert_close(x.grad, layer.weight.sum(0).expand(64, 8))


def test_what_cannot_take_them_does_as_always(calls: list[tuple[int, ...]]) -> None:
    class Other(nn.Linear):
        pass

    layer, x = nn.Linear(8, 16), draw(64, 8)
    with use_onednn_linears([layer, Other(8, 16), layer.double()]):
        assert layer(x.double()).dtype == torch.float64
    layer = layer.float()
    with use_onednn_linears([layer]):
        layer(x[:40])  # few rows
        with torch.autocast("cpu", torch.bfloat16):
            assert layer(x).dtype == torch.bfloat16
        assert not calls
        with torch.no_grad():
            assert not layer(x).requires_grad
        assert len(calls) == 1


def test_the_layer_is_itself_again_afterwards() -> None:
    layer = nn.Linear(8, 16)
    before = dict(layer.__dict__)
    with pytest.raises(ZeroDivisionError), use_onednn_linears([layer, layer]), use_onednn_linears([layer]):
        raise ZeroDivisionError
    assert layer.__dict__ == before


SIZES = 400
GROWTH = f"""
import resource
from pathlib import Path

import torch

from lit_agentrl.models.onednn import _multiply, bound_caches

bound_caches()

resident = lambda: int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() / 2**20
torch.set_num_threads(1)
x, weight = torch.ones(8000, 64), torch.ones(176, 64)
_multiply(x, weight)
before = resident()
for less in range({SIZES}):  # the longest first: growing results would leave gaps
    _multiply(x[: 8000 - 16 * less], weight)
print(resident() - before)
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="the resident size is read from /proc")
def test_memory_does_not_grow_with_the_number_of_sizes() -> None:
    def growth(**variables: str) -> float:
        environment = {k: v for k, v in os.environ.items() if k not in onednn._CAPACITIES}
        done = subprocess.run(
            [sys.executable, "-c", GROWTH],
            env={**environment, **variables},
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == 0, done.stderr[-2000:]
        return float(done.stdout)

    unbounded = growth(**dict.fromkeys(onednn._CAPACITIES, "1024"))  # what the user says counts
    assert unbounded > 0.1 * SIZES  # MiB, of 0.6 a size here; else the test would see nothing
    assert growth() < 0.6 * unbounded
