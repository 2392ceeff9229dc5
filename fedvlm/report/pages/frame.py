"""The frame of every page: one file that loads nothing, with its style and script inside."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources

from fedvlm.report.pages.html import Content, Html, render_template


@dataclass(frozen=True)
class PageSection:
    """A part of a page: its id, heading and content; one without content is left out."""

    key: str
    heading: str
    content: Html


def page(title: str, intro: Content, sections: Sequence[PageSection], origin: str = "") -> str:
    """Return a whole document.

    The policy in its head forbids every load: scripts and style sheets but the two inside (by
    their digests), fonts, frames, requests; images may be data in the page only.

    Args:
        title: shown as the first heading too.
        intro: what stands below it.
        origin: what made the page.
    """
    style, script = static("page.css"), static("page.js")
    policy = (
        f"default-src 'none'; style-src-elem '{_digest(style)}'; style-src-attr 'unsafe-inline'; "
        f"script-src '{_digest(script)}'; img-src data:; base-uri 'none'; form-action 'none'"
    )
    return render_template(
        "page", title=title, intro=intro, sections=[s for s in sections if s.content],
        origin=origin, policy=Html(policy), style=Html(style), script=Html(script),
    )


def static(name: str) -> str:
    """Return a file that comes with the package, as text."""
    file = resources.files("fedvlm.report") / "static" / name
    return file.read_text(encoding="utf-8")


def _digest(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"
