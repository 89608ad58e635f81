"""The name of a network's cache argument, which transformers 5.24 has changed."""

from __future__ import annotations

from typing import Any

import pytest
import transformers
from packaging.version import Version

from lit_agentrl.engines.native.cache_argument import find_cache_argument
from tests.conftest import tiny_network


class Renamed:
    def forward(self, input_ids: Any, past_key_values: Any = None, cache: Any = None) -> None: ...


class Earlier:
    def forward(self, input_ids: Any, past_key_values: Any = None) -> None: ...


class StateSpace:
    def forward(self, input_ids: Any, cache_params: Any = None) -> None: ...


class Without:
    def forward(self, input_ids: Any) -> None: ...


class Adapted:
    """A network with adapters, whose own forward method takes anything."""

    def get_base_model(self) -> Earlier:
        return Earlier()

    def forward(self, *args: Any, **kwargs: Any) -> None: ...


@pytest.mark.parametrize(
    ("network", "name"),
    [
        (Renamed, "cache"),
        (Earlier, "past_key_values"),
        (StateSpace, "cache_params"),
        (Without, None),
        (Adapted, "past_key_values"),
    ],
)
def test_the_name(network: Any, name: str | None) -> None:
    assert find_cache_argument(network()) == name


def test_the_name_of_the_installed_version() -> None:
    is_renamed = Version(transformers.__version__) >= Version("5.24")
    assert find_cache_argument(tiny_network()) == ("cache" if is_renamed else "past_key_values")
