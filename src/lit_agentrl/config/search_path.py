"""The second root of configs, which Hydra searches after the first."""

from __future__ import annotations

from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.plugins import Plugins
from hydra.plugins.search_path_plugin import SearchPathPlugin

from lit_agentrl.paths import CONFIG_DIR, EXPERIMENTAL_DIR

PROVIDERS = ("main", "experimental")  # of the configs of this package; all others are the user's


class ExperimentalConfigs(SearchPathPlugin):
    """Add ``conf/experimental`` to the search path of commands that compose from ``conf``."""

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        if any(str(item.path).removeprefix("file://") == str(CONFIG_DIR) for item in search_path.get_path()):
            search_path.append("experimental", f"file://{EXPERIMENTAL_DIR}")


def register() -> None:
    """Register the second root with Hydra, before it composes for the first time."""
    Plugins.instance().register(ExperimentalConfigs)
