"""What the site changes in a page: links that leave docs/ become the path that they name."""

import re
from pathlib import Path, PurePosixPath
from typing import Any

DOCS = Path(__file__).resolve().parent
LINK = re.compile(r"\[([^\]]*)\]\((?!https?:|#|mailto:)([^)#\s]+)(#[^)]*)?\)")


def on_page_markdown(markdown: str, page: Any, **_more: Any) -> str:
    """Called by MkDocs for each page."""
    folder = PurePosixPath(page.file.src_uri).parent

    def replaced(link: re.Match[str]) -> str:
        target = (DOCS / folder / link[2]).resolve()
        if target.is_relative_to(DOCS) and target.is_file():
            return link[0]
        if not target.exists():
            raise FileNotFoundError(f"{page.file.src_uri}: {link[2]} does not exist")
        path = target.relative_to(DOCS.parent) if target.is_relative_to(DOCS.parent) else target
        return link[1] if link[1].strip("`") == str(path) else f"{link[1]} (`{path}`)"

    return LINK.sub(replaced, markdown)
