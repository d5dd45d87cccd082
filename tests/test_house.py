"""The house: its rooms, what is installed of them, and how they may speak to each other."""

import ast
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
ROOMS = ["broker", "cli", "client", "coord", "protocol", "storage", "testing"]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
MODULES = sorted(path for room in ROOMS for path in (ROOT / room).rglob("*.py"))


def module_id(path: Path) -> str:
    return str(path.relative_to(ROOT))


def test_every_package_on_disk_is_installed():
    on_disk = {
        "ottla." + ".".join(path.parent.relative_to(ROOT).parts)
        for path in MODULES
        if path.name == "__init__.py"
    }

    assert set(PROJECT["tool"]["setuptools"]["packages"]) == {"ottla", *on_disk}


def test_every_room_is_linked_into_the_front_door():
    for room in ROOMS:
        assert (ROOT / "ottla" / room).resolve() == ROOT / room


@pytest.mark.parametrize("path", MODULES, ids=module_id)
def test_imports_are_relative_inside_a_room_and_absolute_between_rooms(path):
    room = path.relative_to(ROOT).parts[0]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            names = [node.module or ""]
        else:
            continue
        for name in names:
            first, *rest = name.split(".")
            assert first not in ROOMS, f"{name}: a room is imported as ottla.{name}"
            assert first != "ottla" or rest[:1] != [room], f"{name}: say .{'.'.join(rest[1:])}"


@pytest.mark.parametrize("path", MODULES, ids=module_id)
def test_every_module_says_what_it_is_for(path):
    assert ast.get_docstring(ast.parse(path.read_text()))


def test_the_contracts_between_rooms_are_noticed_when_broken(tmp_path):
    """import-linter keeps them in `make lint`; here one is broken, to see that it does."""
    copy = tmp_path / "ottla"
    copy.mkdir()
    (copy / "__init__.py").touch()
    for room in ROOMS:
        (copy / room).mkdir()
        (copy / room / "__init__.py").touch()
    (tmp_path / "pyproject.toml").write_text((ROOT / "pyproject.toml").read_text())
    for module in ("api", "codec", "compiler", "registry", "schema"):
        (copy / "protocol" / f"{module}.py").touch()

    assert lint(tmp_path) == 0

    for room, line in {
        "protocol": "import socket",
        "coord": "import ottla.storage",
        "storage": "import ottla.protocol.codec",
        "client": "import construct",
    }.items():
        target = copy / room / "__init__.py"
        target.write_text(line + "\n")
        assert lint(tmp_path) == 1, f"{room} may not `{line}`"
        target.write_text("")


def lint(folder: Path) -> int:
    script = "from importlinter.cli import lint_imports_command as run; run(['--no-cache'])"
    command = [sys.executable, "-c", f"import sys; sys.path.insert(0, '.'); {script}"]
    return subprocess.run(command, cwd=folder, capture_output=True, check=False).returncode


def test_the_api_modules_are_imported_when_they_are_needed_and_not_before():
    script = (
        "import sys, ottla.protocol.codec, ottla.protocol.batch\n"
        "loaded = lambda: {m for m in sys.modules if m.startswith('ottla.protocol.api.')}\n"
        "assert not loaded(), loaded()\n"
        "from ottla.protocol.registry import HEARTBEAT; HEARTBEAT.request\n"
        "assert loaded() == {'ottla.protocol.api.heartbeat'}, loaded()\n"
    )

    subprocess.run([sys.executable, "-c", script], check=True)


def test_mypy_knows_the_messages(tmp_path):
    """Fields are typed, keyword-only, optional, and nobody assigns to them."""
    snippet = tmp_path / "snippet.py"
    snippet.write_text(
        "from ottla.protocol.api.heartbeat import HeartbeatRequest\n"
        "ok = HeartbeatRequest(group_id='g', group_instance_id=None)\n"
        "epoch: int = ok.generation_id\n"
        "HeartbeatRequest(group_id=7)\n"
        "HeartbeatRequest(group='g')\n"
        "HeartbeatRequest('g')\n"
        "ok.group_id = 'h'\n"
        "name: str = ok.group_instance_id\n"
    )
    command = [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", str(snippet)]
    config = ["--config-file", str(ROOT / "pyproject.toml")]

    done = subprocess.run(
        [*command, *config], cwd=ROOT, capture_output=True, text=True, check=False
    )

    wrong = {int(line.split(":")[1]) for line in done.stdout.splitlines() if ": error:" in line}
    assert wrong == {4, 5, 6, 7, 8}, done.stdout + done.stderr
