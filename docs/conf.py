"""Configuration of Sphinx for the site: `make docs`."""

from __future__ import annotations

import re
from importlib.metadata import PackageNotFoundError, metadata
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.domains.python import PyObject
from sphinx.util.docfields import TypedField

import windeck

DOCS = Path(__file__).parent

project = "windeck"
author = "The windeck authors"
copyright = author
release = version = windeck.__version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "sphinx_copybutton",
]
exclude_patterns = ["design", "_build"]
myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 4
#: A single backtick in a docstring is code, as in the pages.
default_role = "code"
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
#: Names of types that are shown instead of what they stand for.
autodoc_type_aliases = {
    name: name for name in ("ArrayLike", "Weight", "Function", "Progress", "Patterns", "Paths")
}
python_maximum_signature_line_length = 88
autodoc_class_signature = "mixed"
napoleon_google_docstring = False
napoleon_use_rtype = False
napoleon_use_ivar = True  # attributes of a class are described in its docstring
napoleon_custom_sections = [("Complexity", "notes_style"), ("Cost", "notes_style")]
copybutton_prompt_text = ">>> |\\.\\.\\. |\\$ "
copybutton_prompt_is_regexp = True

#: A `Stream` in a signature may be that of the package or the protocol.
suppress_warnings = ["ref.python"]

html_theme = "furo"
html_title = f"windeck {release}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_copy_source = True  # llms.txt links to the sources

LINK = re.compile(r"\[([^\]]*)\]\((?!\w+:|#)([^)#\s]+)(#[^)\s]*)?\)")


def source_url() -> str:
    """Return the address of the repository that the distribution states; empty without one."""
    try:
        urls = metadata("windeck").get_all("Project-URL") or []
    except PackageNotFoundError:
        return ""
    found = dict(url.split(", ", 1) for url in urls)
    return (found.get("Source") or found.get("Repository") or "").rstrip("/")


def link_to_source(app: Any, docname: str, content: list[str]) -> None:
    """Turn links to examples into downloads, and to other files into links to the repository.

    Where the distribution states no repository, the names of the other files are left.
    """
    page = Path(app.env.doc2path(docname))

    def replaced(match: re.Match[str]) -> str:
        text, path, anchor = match[1], match[2], match[3] or ""
        target = (page.parent / path).resolve()
        inside = target.is_relative_to(DOCS) and not target.is_relative_to(DOCS / "design")
        if inside or not target.exists():
            return match[0]
        name = target.relative_to(DOCS.parent)
        if name.parts[0] == "examples":
            return f"{{download}}`{text.strip('`')} <{path}>`"
        if url := source_url():
            return f"[{text}]({url}/blob/main/{name}{anchor})"
        return text if text.strip("`") == str(name) else f"{text} (`{name}`)"

    content[0] = LINK.sub(replaced, content[0])


def drop_empty_globs(app: Any, docname: str, content: list[str]) -> None:
    """Remove the globs of a toctree that match no page, of which Sphinx would warn."""
    lines = content[0].splitlines(keepends=True)
    kept = [line for line in lines if "*" not in line or not _is_empty_glob(line.strip())]
    content[0] = "".join(kept)


def _is_empty_glob(line: str) -> bool:
    return re.fullmatch(r"[\w/]+\*", line) is not None and not any(DOCS.glob(f"{line}.md"))


def plain_types() -> None:
    """Show types of docstrings as they are written: words in them, such as `path`, are no names."""
    for field in PyObject.doc_field_types:
        if isinstance(field, TypedField):
            field.typerolename = ""
        if field.name == "variable":
            field.label = "Attributes"


def edit_signature(
    app: Any, what: str, name: str, value: Any, options: Any, signature: str | None, returns: str
) -> tuple[str, str] | None:
    """Show no arguments of classes that functions make, which are not public; plain names."""
    if what == "class" and re.search(r"^\s*Made by ", value.__doc__ or "", re.MULTILINE):
        return "", ""
    # The protocol, which modules with a class of that name import by another one.
    return None if signature is None else (signature.replace("StreamProtocol", "Stream"), returns)


def first_paragraph(doctree: Any) -> str:
    """Return the text of a page's first paragraph, on one line."""
    for node in doctree.findall(nodes.paragraph):
        if isinstance(node.parent, nodes.section):
            return re.sub(r"\s+", " ", node.astext())
    return ""


def write_llms(app: Any, error: Exception | None) -> None:
    """Write ``llms.txt``: the pages in the order of the navigation, each with a sentence or two."""
    if error is not None or app.builder.format != "html":
        return
    lines = [f"# windeck {release}", "", f"> {first_paragraph(app.env.get_doctree('index'))}"]
    seen = {"index"}

    def add(docname: str) -> None:
        for page in app.env.toctree_includes.get(docname, []):
            if page not in seen:
                seen.add(page)
                title = app.env.titles[page].astext()
                about = first_paragraph(app.env.get_doctree(page))
                suffix = Path(app.env.doc2path(page)).suffix
                lines.append(f"- [{title}](_sources/{page}{suffix}.txt): {about}")
                add(page)

    lines += ["", "## Pages", ""]
    add("index")
    Path(app.outdir, "llms.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")


def setup(app: Any) -> None:
    """Connect the functions above."""
    plain_types()
    app.connect("source-read", link_to_source)
    app.connect("source-read", drop_empty_globs)
    app.connect("autodoc-process-signature", edit_signature)
    app.connect("build-finished", write_llms)
