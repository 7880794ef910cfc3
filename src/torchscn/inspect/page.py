"""HTML for a report: one file that needs nothing else."""

import base64
from collections.abc import Iterable, Sequence
from html import escape

__all__ = ["figure", "note", "page", "paragraph", "section", "table"]

STYLE = """
:root { color-scheme: light dark; --ink: #1d2327; --soft: #5b6870; --paper: #ffffff; --line: #d8dee2; --tint: #f3f6f7;
  --accent: #1f6f8b; }
@media (prefers-color-scheme: dark) { :root { --ink: #e4e9ec; --soft: #9aa8b0; --paper: #14191c; --line: #323c42;
  --tint: #1d2529; --accent: #6cb8d2; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 66rem; padding: 1.5rem 1rem 4rem; background: var(--paper); color: var(--ink);
  font: 16px/1.55 system-ui, sans-serif; }
h1 { font-size: 1.7rem; margin: 0 0 .3rem; }
h2 { font-size: 1.25rem; margin: 2.6rem 0 .4rem; padding-top: .6rem; border-top: 1px solid var(--line); }
h3 { font-size: 1rem; margin: 1.4rem 0 .3rem; }
p { margin: .5rem 0; max-width: 46rem; }
nav a { color: var(--accent); margin-right: 1rem; white-space: nowrap; }
figure { margin: 1rem 0; }
figure img { display: block; max-width: 100%; height: auto; background: #fff; border-radius: 6px; padding: 4px; }
figcaption { color: var(--soft); font-size: .88rem; margin-top: .35rem; max-width: 46rem; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: .88rem; margin: .8rem 0; }
th, td { padding: .25rem .7rem .25rem 0; text-align: right; border-bottom: 1px solid var(--line); }
th:first-child, td:first-child, td.text, th.text { text-align: left; }
th { color: var(--soft); font-weight: 600; }
.note { background: var(--tint); border-left: 3px solid var(--accent); padding: .5rem .8rem; max-width: 46rem; }
.facts { color: var(--soft); }
@page { margin: 15mm; }
@media print { body { max-width: none; font-size: 11pt; padding: 0; } nav { display: none; }
  figure, tr, .note { break-inside: avoid; } h2, h3 { break-after: avoid; } :root { --paper: #fff; --ink: #000;
  --soft: #444; --tint: #f3f6f7; --line: #ccc; } }
"""


def page(title: str, facts: str, sections: Sequence[tuple[str, str]]) -> str:
    """A whole page.

    Args:
        title: what the page is about.
        facts: one line below it.
        sections: name and HTML of every part.
    """
    links = " ".join(f'<a href="#{_anchor(name)}">{escape(name)}</a>' for name, _ in sections)
    parts = "\n".join(section(name, body) for name, body in sections)
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(title)}</title>
<style>{STYLE}</style>
</head>
<body>
<h1>{escape(title)}</h1>
<p class="facts">{escape(facts)}</p>
<nav aria-label="Parts of this report">{links}</nav>
<main>
{parts}
</main>
</body>
</html>
"""


def section(name: str, body: str) -> str:
    """A part of the page with a heading that can be linked to."""
    return f'<section>\n<h2 id="{_anchor(name)}">{escape(name)}</h2>\n{body}\n</section>'


def paragraph(text: str) -> str:
    """A paragraph of plain text."""
    return f"<p>{escape(text)}</p>"


def note(text: str) -> str:
    """A remark that stands out."""
    return f'<p class="note">{escape(text)}</p>'


def figure(png: bytes, caption: str) -> str:
    """A picture inside the page, with a caption that also tells those who cannot see it what it shows."""
    source = base64.b64encode(png).decode()
    text = escape(caption, quote=True)
    return (
        f'<figure><div class="wide"><img alt="{text}" src="data:image/png;base64,{source}"></div>'
        f"<figcaption>{escape(caption)}</figcaption></figure>"
    )


def table(head: Sequence[str], rows: Iterable[Sequence[str]], text_columns: Sequence[int] = (0,)) -> str:
    """A table; columns of text are aligned to the left, numbers to the right."""

    def line(cells: Sequence[str], tag: str) -> str:
        kinds = [' class="text"' if index in text_columns else "" for index in range(len(cells))]
        inside = (f"<{tag}{kind}>{escape(cell)}</{tag}>" for kind, cell in zip(kinds, cells, strict=True))
        return f"<tr>{''.join(inside)}</tr>"

    body = "".join(line(row, "td") for row in rows)
    return f'<div class="wide"><table><thead>{line(head, "th")}</thead><tbody>{body}</tbody></table></div>'


def _anchor(name: str) -> str:
    return "".join(char if char.isalnum() else "-" for char in name.lower())
