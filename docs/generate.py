"""Writes those parts of docs/ that follow from the code.

    python docs/generate.py            write them
    python docs/generate.py --check    fail if they are not what they would be

A generated part stands between two comments, `<!-- generated: NAME -->` and `<!-- end -->`.
"""

from __future__ import annotations

import re
import sys
from dataclasses import fields
from pathlib import Path

from ottla.protocol.errors import ErrorCode, Retry
from ottla.protocol.registry import APIS
from ottla.storage.config import FOREVER, LogConfig

DOCS = Path(__file__).resolve().parent

RETRY = {Retry.NEVER: "", Retry.LATER: "yes", Retry.REFRESHED: "yes, after a look-up"}


def apis() -> str:
    """Give the table of apis and versions."""
    lines = [
        "| key | api | versions | flexible from | what for |",
        "|---:|---|---|---|---|",
    ]
    for api in APIS.values():
        versions = str(api.versions)
        if api.advertised != api.versions:
            versions += f" (advertised as {api.advertised})"
        flexible = api.versions.flexible_since
        never = flexible is None or flexible > api.versions.last
        source = f"[{api.name}](../protocol/api/{api.module_name}.py)"
        purpose = (sys.modules[api.request.__module__].__doc__ or "").splitlines()[0]
        purpose = purpose.partition(": ")[2].removesuffix(".")
        lines.append(
            f"| {api.key} | {source} | {versions} | {'never' if never else flexible} | {purpose} |"
        )
    return "\n".join(lines)


def errors() -> str:
    """Give the table of error codes."""
    lines = ["| code | name | retriable | message |", "|---:|---|---|---|"]
    lines += [
        f"| {code.value} | {code.name} | {RETRY[code.retry]} | {code.message} |"
        for code in ErrorCode
    ]
    return "\n".join(lines)


def log_config() -> str:
    """Give the table of the settings of a log."""
    lines = ["| setting | default | may be | what it does |", "|---|---|---|---|"]
    for spec in fields(LogConfig):
        low, high, choices = (spec.metadata[key] for key in ("low", "high", "choices"))
        span = " to ".join(_number(bound) for bound in (low, high) if bound is not None)
        allowed = ", ".join(choices) or (span if high is not None else f"{span} or more")
        name = spec.name.replace("_", ".")
        doc = spec.metadata["doc"]
        lines.append(f"| `{name}` | {_number(spec.default)} | {allowed} | {doc} |")
    return "\n".join(lines)


def _number(value: object) -> str:
    if value == FOREVER:
        return "no limit"
    return f"{value:,}" if isinstance(value, int) else str(value)


PARTS = {"apis": apis, "errors": errors, "log_config": log_config}


def generated(text: str) -> str:
    """Give the text with its generated parts as they should be."""

    def replace(match: re.Match[str]) -> str:
        name = match["name"]
        return f"<!-- generated: {name} -->\n\n{PARTS[name]()}\n\n<!-- end -->"

    return re.sub(
        r"<!-- generated: (?P<name>\w+) -->.*?<!-- end -->", replace, text, flags=re.DOTALL
    )


def main() -> int:
    """Write, or check."""
    stale = []
    for path in sorted(DOCS.rglob("*.md")):
        text = path.read_text()
        wanted = generated(text)
        if text != wanted:
            stale.append(path.relative_to(DOCS.parent))
            if "--check" not in sys.argv:
                path.write_text(wanted)
    if stale and "--check" in sys.argv:
        names = ", ".join(map(str, stale))
        sys.stderr.write(f"stale: {names}; write it again with: make docs\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
