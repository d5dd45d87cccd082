"""Login and logout."""

from __future__ import annotations

import re
from urllib.parse import parse_qs

from fastapi import APIRouter, Request
from starlette.responses import RedirectResponse, Response

from ..access import cookie_name, session_id_of
from ..problems import Problem
from .rendering import render

router = APIRouter()


@router.get("/login")
async def show_login(request: Request) -> Response:
    """Show the form."""
    if not request.app.state.config.needs_login:
        return RedirectResponse("/", 303)
    return _form(request, _local(request.query_params.get("next", "/")))


@router.post("/login")
async def log_in(request: Request) -> Response:
    """Open a session."""
    config, sessions = request.app.state.config, request.app.state.sessions
    fields = parse_qs((await request.body()).decode(errors="replace"), keep_blank_values=True)
    values = {name: some[-1] for name, some in fields.items()}
    target = _local(values.get("next", "/"))
    try:
        if config.login_mechanism is not None:
            session_id = await sessions.open_with_credentials(
                values.get("username", ""), values.get("password", "")
            )
        else:
            session_id = await sessions.open_with_token(values.get("token", ""))
    except Problem as problem:
        username = values.get("username", "")
        return _form(request, target, username, problem.detail, problem.status)
    # A login replaces the session that the browser had, if any.
    await sessions.end(session_id_of(request.headers, config))
    response = RedirectResponse(target, 303)
    response.set_cookie(
        cookie_name(config),
        session_id,
        httponly=True,
        samesite="strict",
        secure=request.url.scheme == "https",
    )
    return response


@router.post("/logout")
async def log_out(request: Request) -> Response:
    """Close the session."""
    config = request.app.state.config
    await request.app.state.sessions.end(session_id_of(request.headers, config))
    response = Response(status_code=204)
    response.delete_cookie(cookie_name(config), httponly=True, samesite="strict")
    return response


def _form(
    request: Request, target: str, username: str = "", error: str = "", status: int = 200
) -> Response:
    return render(
        request,
        "login.html",
        status=status,
        next=target,
        username=username,
        error=error,
        mechanism=request.app.state.config.login_mechanism,
    )


def _local(target: str) -> str:
    """Return where to go after the login: a path of this console only."""
    # Browsers take "//" and more slashes, or backslashes, for the beginning of a host.
    is_local = re.fullmatch(r"/(?![/\\])[^\\\x00-\x1f]*", target)
    return target if is_local else "/"
