"""Hooks of mkdocs that add generated pages, adapt links and check the built site.

``docs/**/*.md`` are written for GitHub, where a link names a file of the repository.  The hooks point each link to the
page made from that file.  They add the READMEs of the examples (with their files), the changelog, the contributing
guide, the options (``docs_conf.py``), the named algorithms (``algorithm_table.py``) and the Python reference
(``docs_python.py``).
"""

from __future__ import annotations

import logging
import os
import re
from pathlib import Path
from typing import Any

import algorithm_table
import docs_check
import docs_conf
import docs_python
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parent.parent
OUTSIDE = {"CHANGELOG.md": "changelog.md", "CONTRIBUTING.md": "contributing.md", "README.md": "index.md"}
LANGUAGES = {".py": "python", ".yaml": "yaml"}
GENERATED = {
    "reference/conf": docs_conf.make_pages,
    "reference/algorithms": algorithm_table.make_pages,
    "reference/python": docs_python.make_pages,
}
WORKER = "https://unpkg.com/iframe-worker/shim"
log = logging.getLogger("mkdocs.hooks")


def find_homes() -> dict[str, str]:
    """Map each Markdown file of the repository to its path on the site."""
    examples = {
        str(readme.relative_to(ROOT)): f"examples/{readme.parent.name}.md"
        for readme in sorted(ROOT.glob("examples/*/README.md"))
    }
    docs = ROOT / "docs"
    pages = {f"docs/{(name := str(page.relative_to(docs)))}": name for page in docs.rglob("*.md")}
    return OUTSIDE | examples | pages


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Replace each folder of generated pages in the navigation by its pages."""
    config.nav = [_fill_navigation(entry) for entry in config.nav or []]
    return config


def _fill_navigation(entry: Any) -> Any:
    if isinstance(entry, dict):
        return {title: _fill_navigation(child) for title, child in entry.items()}
    if isinstance(entry, list):
        return [_fill_navigation(child) for child in entry]
    if entry in GENERATED:
        pages = list(GENERATED[entry]())
        return pages if len(pages) > 1 else pages[0]
    return entry


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages from outside ``docs/``."""
    pages_by_uri = {uri: text for pages in GENERATED.values() for uri, text in pages().items()}
    for source, uri in find_homes().items():
        if not source.startswith("docs/") and uri != "index.md":
            pages_by_uri[uri] = (ROOT / source).read_text(encoding="utf-8") + _format_sources(ROOT / source)
    for uri, text in pages_by_uri.items():
        files.append(File.generated(config, uri, content=text))
    return files


def _format_sources(readme: Path) -> str:
    """Format the files of an example, which GitHub lists next to its README."""
    if readme.parent == ROOT:
        return ""
    blocks = [
        f"\n## {file.relative_to(readme.parent)}\n\n````{LANGUAGES[file.suffix]}\n"
        f"{file.read_text(encoding='utf-8').rstrip()}\n````\n"
        for file in sorted(readme.parent.rglob("*"), key=lambda f: (f.suffix != ".py", f))
        if file.suffix in LANGUAGES
    ]
    return "".join(blocks)


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Replace links to files of the repository by links to their pages, or labels.

    In code, ``\\|`` becomes a plain bar.
    """
    home = {uri: source for source, uri in find_homes().items() if source != "README.md"}.get(
        page.file.src_uri
    )
    if home is not None:
        folder, here = Path(home).parent, Path(page.file.src_uri).parent

        def move_link(link: re.Match[str]) -> str:
            label, target, anchor = link[1], link[2], link[3] or ""
            source = os.path.normpath(folder / target)
            if source in find_homes():
                label = _read_title(source) if label.endswith(".md") else label
                return f"[{label}]({os.path.relpath(find_homes()[source], here)}{anchor})"
            is_source = not source.startswith("docs/") and (ROOT / source).is_file()
            return label if is_source else link[0]

        markdown = re.sub(r"\[([^\[\]]*)\]\((?!https?://)([^)#\s]+)(#[^)\s]*)?\)", move_link, markdown)
    return re.sub(r"`[^`\n]+`", lambda code: code[0].replace("\\|", "|"), markdown)


def _read_title(source: str) -> str:
    """Return the heading of a page."""
    return (ROOT / source).read_text(encoding="utf-8").partition("# ")[2].splitlines()[0]


def on_post_page(output: str, page: Page, config: MkDocsConfig) -> str:
    """Replace the network address of the search worker by the copy in the site.

    Without this, the theme's search needs a network when the site is read from a disk.
    """
    return output.replace(WORKER, os.path.relpath("theme/iframe-worker.js", Path(page.file.src_uri).parent))


def on_post_template(output_content: str, template_name: str, config: MkDocsConfig) -> str:
    """Replace the address of the search worker on the page for missing pages (404)."""
    return output_content.replace(WORKER, "theme/iframe-worker.js")


def on_post_build(config: MkDocsConfig) -> None:
    """Warn about unexplained options and broken links; with ``--strict``, warnings fail the build."""
    unexplained = (
        f"the option {key} is not explained: write a comment after it" for key in docs_conf.list_unexplained()
    )
    for fault in [*unexplained, *docs_check.find_faults(Path(config.site_dir))]:
        log.warning(fault)
