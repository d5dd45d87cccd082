"""Templates, and what all pages have."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from ottla import __version__

from ..access import current_session
from ..problems import Problem
from ..rendering import visible
from . import units

FOLDER = Path(__file__).parents[1]
#: Rows of a page of a list.
PAGE_ROWS = 50


def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(FOLDER / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "by_topic": units.by_topic,
        "bytes": units.size,
        "clock": lambda time: "–" if time is None else time.replace("T", " ").removesuffix("Z"),
        "duration": units.duration,
        "meaning": lambda config: units.meaning(config.name, config.value),
        "number": units.number,
        "part": lambda text: quote(str(text), safe=""),
        "quota": units.quota,
        "rate": units.rate,
        "visible": visible,
    }
    environment.globals["version"] = __version__
    return environment


_templates = _environment()


def load_templates() -> None:
    """Compile the templates that were not used yet."""
    for name in _templates.list_templates():
        _templates.get_template(name)


def render(
    request: Request, template: str, *, status: int = 200, section: str = "", **context: Any
) -> HTMLResponse:
    """Return a page."""
    config = request.app.state.config
    session = current_session.get(None)

    def url_with(**changes: Any) -> str:
        """Return this page's URL with other parameters."""
        params = dict(request.query_params) | changes
        kept = {name: value for name, value in params.items() if value not in (None, "")}
        return f"{quote(request.url.path)}?{urlencode(kept)}"

    text = _templates.get_template(template).render(
        section=section,
        path=request.url.path,
        bootstrap=config.bootstrap,
        read_only=config.read_only,
        needs_login=config.needs_login,
        user=None if session is None else session.user,
        csrf="" if session is None else session.csrf,
        url_with=url_with,
        **context,
    )
    return HTMLResponse(text, status)


def render_problem(request: Request, problem: Problem) -> Response:
    """Return the page of an error."""
    body = problem.body()
    return render(
        request,
        "problem.html",
        status=problem.status,
        title=body["title"],
        detail=visible(problem.detail),
        code=body.get("code"),
    )


def paged(request: Request, items: list[Any]) -> dict[str, Any]:
    """Return the context of a page of a list: its rows, and where it is."""
    text = request.query_params.get("page", "1")
    last = max(1, -(-len(items) // PAGE_ROWS))
    page = min(max(1, int(text) if text.isdecimal() and len(text) < 9 else 1), last)
    first = (page - 1) * PAGE_ROWS
    rows = items[first : first + PAGE_ROWS]
    return {"rows": rows, "total": len(items), "page": page, "last_page": last, "first_row": first}
