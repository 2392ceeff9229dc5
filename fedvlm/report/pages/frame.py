"""The frame of every page: one file that loads nothing, with its style and script inside."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources

from fedvlm.report.pages.html import Content, Html, element, items, join


@dataclass(frozen=True)
class Section:
    """A part of a page: its id, heading and content; one without content is left out."""

    key: str
    heading: str
    content: Html


def page(title: str, intro: Content, sections: Sequence[Section], origin: str = "") -> str:
    """Return a whole document.

    The policy in its head forbids every load: scripts and style sheets but the two inside (by
    their digests), fonts, frames, requests; images may be data in the page only.

    Args:
        title: shown as the first heading too.
        intro: what stands below it.
        origin: what made the page.
    """
    style, script = static("page.css"), static("page.js")
    parts = [s for s in sections if s.content]
    links = [element("a", s.heading, href=f"#{s.key}") for s in parts]
    body = [
        element("section", element("h2", s.heading), s.content, id=s.key) for s in parts
    ]
    policy = (
        f"default-src 'none'; style-src-elem '{_digest(style)}'; style-src-attr 'unsafe-inline'; "
        f"script-src '{_digest(script)}'; img-src data:; base-uri 'none'; form-action 'none'"
    )
    head = element(
        "head", element("meta", charset="utf-8"),
        Html(f'<meta http-equiv="Content-Security-Policy" content="{policy}">'),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        element("meta", name="generator", content="fedvlm"),
        element("title", title), Html(f"<style>{style}</style>"),
    )
    command = element("p", "Made by ", element("code", origin))
    main = join([
        element("header", element("h1", title), intro),
        element("nav", items(links), aria_label="Sections"), element("main", *body),
        element("footer", command) if origin else None,
        Html(f"<script>{script}</script>"),
    ], "\n")
    return f'<!DOCTYPE html>\n<html lang="en">{head}\n<body>\n{main}\n</body></html>\n'


def static(name: str) -> str:
    """Return a file that comes with the package, as text."""
    file = resources.files("fedvlm.report") / "static" / name
    return file.read_text(encoding="utf-8")


def _digest(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"
