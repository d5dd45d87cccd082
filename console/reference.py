"""The endpoints as documentation: for the page in the console, and for docs/rest.md."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlencode

#: The address in examples.
ADDRESS = "http://localhost:8080"
_METHODS = ("get", "post", "put", "patch", "delete")
_EXAMPLE_NAMES = {
    "topic": "orders",
    "group": "billing",
    "broker": "0",
    "user": "alice",
    "transactional_id": "billing-1",
}


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter of an endpoint."""

    name: str
    where: str
    type: str
    default: str
    description: str


@dataclass(frozen=True, slots=True)
class Operation:
    """An endpoint."""

    method: str
    path: str
    tag: str
    summary: str
    description: str
    parameters: tuple[Parameter, ...]
    #: An example of the body, as JSON; empty if there is none.
    body: str
    curl: str


def operations(document: dict[str, Any]) -> list[Operation]:
    """Return the endpoints in an OpenAPI document."""
    return [
        _operation(document, path, method, item[method])
        for path, item in document["paths"].items()
        for method in _METHODS
        if method in item
    ]


def _operation(
    document: dict[str, Any], path: str, method: str, operation: dict[str, Any]
) -> Operation:
    summary, _, description = operation.get("description", "").partition("\n\n")
    schema = _content(operation.get("requestBody", {}))
    model = document["components"]["schemas"].get(schema.get("$ref", "").rpartition("/")[2], {})
    example = operation.get("x-example") or next(iter(model.get("examples", [])), None)
    body = "" if example is None else json.dumps(example)
    return Operation(
        method=method.upper(),
        path=path,
        tag=operation.get("tags", [""])[0],
        summary=" ".join(summary.split()),
        description=description,
        parameters=tuple(_parameter(one) for one in operation.get("parameters", [])),
        body=body,
        curl=_curl(method.upper(), path, operation.get("parameters", []), body),
    )


def _content(body: dict[str, Any]) -> dict[str, Any]:
    schema: dict[str, Any] = body.get("content", {}).get("application/json", {}).get("schema", {})
    return schema


def _parameter(one: dict[str, Any]) -> Parameter:
    schema = one["schema"]
    default = schema.get("default")
    return Parameter(
        one["name"],
        one["in"],
        _type(schema),
        "" if default is None else json.dumps(default),
        one.get("description", ""),
    )


def _type(schema: dict[str, Any]) -> str:
    if "anyOf" in schema:
        return _type(next(one for one in schema["anyOf"] if one.get("type") != "null"))
    if "enum" in schema:
        return " or ".join(schema["enum"])
    return str(schema.get("type", ""))


def _curl(method: str, path: str, parameters: list[dict[str, Any]], body: str) -> str:
    for name, value in _EXAMPLE_NAMES.items():
        path = path.replace(f"{{{name}}}", quote(value))
    needed = [one["name"] for one in parameters if one["in"] == "query" and one.get("required")]
    if needed:
        path += "?" + urlencode({name: _EXAMPLE_NAMES[name] for name in needed})
    words = ["curl"]
    if path.endswith("/tail"):
        words.append("-N --max-time 2")
    if method != "GET":
        words.append(f"-X {method}")
    if body:
        words.append(f"-H 'Content-Type: application/json' -d '{body}'")
    return " ".join([*words, f"{ADDRESS}{path}"])


def markdown(document: dict[str, Any]) -> str:
    """Return the reference as Markdown, for an OpenAPI document."""
    parts: list[str] = []
    tag = None
    for one in operations(document):
        if one.tag != tag:
            tag = one.tag
            parts.append(f"## {tag.capitalize()}")
        parts.append(f"### `{one.method} {one.path}`")
        parts.append(one.summary)
        if one.description:
            parts.append(one.description)
        rows = [
            f"| `{p.name}` | {p.where} | {p.type} | {f'`{p.default}`' if p.default else ''} |"
            f" {p.description} |"
            for p in one.parameters
            if p.where != "path"
        ]
        if rows:
            head = ["| parameter | in | type | default | description |", "|---|---|---|---|---|"]
            parts.append("\n".join([*head, *rows]))
        parts.append(f"```\n{one.curl}\n```")
    return "\n\n".join(parts)
