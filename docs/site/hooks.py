"""mkdocs' hooks: add the generated pages, and rewrite links that leave ``docs/``."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))  # mkdocs loads this file by its path

from mkdocs.structure.files import File, Files  # noqa: E402

from docs.site import cases, commands, methods, notebooks  # noqa: E402

CONTRIBUTING = "contributing.md"
WIDE = "results/"  # pages of wide tables: no list of contents beside them
# A link from docs/ to another folder of the repository -> the page of the site.
ELSEWHERE = {
    "../CONTRIBUTING.md": CONTRIBUTING, "../trainers/": f"{methods.FOLDER}/index.md",
    "../fedvlm/cli/": commands.COMMANDS, "../fedvlm/config/": commands.KEYS,
}
TABLE = f"]({cases.FILE})", f"]({cases.PAGE.rpartition('/')[2]})"  # a spreadsheet, and its page
# A section of the navigation -> the heading in it, and the folder, of its generated pages.
GENERATED = {
    "Start": ("Notebooks", "notebooks/"), "Methods": ("Each method", f"{methods.FOLDER}/"),
}
_made: dict[str, str] = {}


def on_config(config: Any) -> Any:
    """Generate the pages, and add methods and notebooks to the navigation."""
    _made.clear()
    _made.update(methods.pages() | commands.pages() | notebooks.pages() | cases.pages())
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    _made[CONTRIBUTING] = text.replace("](docs/", "](")
    for part in config.nav:
        for title, entries in part.items():
            if title in GENERATED:
                heading, folder = GENERATED[title]
                pages = [p for p in _made if p.startswith(folder) and p not in entries]
                entries.append({heading: pages})
    return config


def on_files(files: Files, config: Any) -> Files:
    """Add the pages."""
    for path, text in _made.items():
        files.append(File.generated(config, path, content=text))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Rewrite links that leave ``docs/``; pages of results give their tables the whole width."""
    if page.file.src_uri.startswith(WIDE):
        page.meta.setdefault("hide", ["toc"])
    up = "../" * page.file.src_uri.count("/")
    for here, there in ELSEWHERE.items():
        markdown = markdown.replace(f"]({up}{here}", f"]({up}{there}")
    markdown = markdown.replace(*TABLE)
    return re.sub(r"<!-- (?:not run|setup).*?-->\n", "", markdown, flags=re.DOTALL)
