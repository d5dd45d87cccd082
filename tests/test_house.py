"""The packages: what is installed, and which may import which."""

import ast
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ["broker", "cli", "client", "console", "coord", "protocol", "storage", "testing"]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
MODULES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))


def module_id(path: Path) -> str:
    return str(path.relative_to(ROOT))


def test_every_package_on_disk_is_installed():
    on_disk = {
        "ottla." + ".".join(path.parent.relative_to(ROOT).parts)
        for path in MODULES
        if path.name == "__init__.py"
    }

    assert set(PROJECT["tool"]["setuptools"]["packages"]) == {"ottla", *on_disk}


def test_every_package_is_linked_into_ottla():
    for package in PACKAGES:
        assert (ROOT / "ottla" / package).resolve() == ROOT / package


@pytest.mark.parametrize("path", MODULES, ids=module_id)
def test_imports_are_relative_within_a_package_and_absolute_between_packages(path):
    package = path.relative_to(ROOT).parts[0]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            names = [node.module or ""]
        else:
            continue
        for name in names:
            first, *rest = name.split(".")
            assert first not in PACKAGES, f"{name}: import ottla.{name}"
            assert first != "ottla" or rest[:1] != [package], (
                f"{name}: import .{'.'.join(rest[1:])}"
            )


@pytest.mark.parametrize("path", MODULES, ids=module_id)
def test_every_module_has_a_docstring(path):
    assert ast.get_docstring(ast.parse(path.read_text()))


def test_violated_import_contracts_are_detected(tmp_path):
    """`make lint` checks them with import-linter; here each is violated."""
    copy = tmp_path / "ottla"
    copy.mkdir()
    (copy / "__init__.py").touch()
    for package in PACKAGES:
        (copy / package).mkdir()
        (copy / package / "__init__.py").touch()
    (tmp_path / "pyproject.toml").write_text((ROOT / "pyproject.toml").read_text())
    for module in ("api", "codec", "compiler", "registry", "schema"):
        (copy / "protocol" / f"{module}.py").touch()

    assert lint(tmp_path) == 0

    for package, line in {
        "protocol": "import socket",
        "coord": "import ottla.storage",
        "storage": "import ottla.protocol.codec",
        "client": "import construct",
        "console": "import ottla.protocol",
    }.items():
        target = copy / package / "__init__.py"
        target.write_text(line + "\n")
        assert lint(tmp_path) == 1, f"{package} may not `{line}`"
        target.write_text("")


def lint(folder: Path) -> int:
    script = "from importlinter.cli import lint_imports_command as run; run(['--no-cache'])"
    command = [sys.executable, "-c", f"import sys; sys.path.insert(0, '.'); {script}"]
    return subprocess.run(command, cwd=folder, capture_output=True, check=False).returncode


def test_api_modules_are_imported_on_first_use():
    script = (
        "import sys, ottla.protocol.codec, ottla.protocol.batch\n"
        "loaded = lambda: {m for m in sys.modules if m.startswith('ottla.protocol.api.')}\n"
        "assert not loaded(), loaded()\n"
        "from ottla.protocol.registry import HEARTBEAT; HEARTBEAT.request\n"
        "assert loaded() == {'ottla.protocol.api.heartbeat'}, loaded()\n"
    )

    subprocess.run([sys.executable, "-c", script], check=True)


def lines_with_type_errors(tmp_path, text):
    """Return the numbers of the lines that mypy --strict rejects, and its output."""
    snippet = tmp_path / "snippet.py"
    snippet.write_text(text)
    command = [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", str(snippet)]
    config = ["--config-file", str(ROOT / "pyproject.toml")]
    done = subprocess.run(
        [*command, *config], cwd=ROOT, capture_output=True, text=True, check=False
    )
    output = done.stdout + done.stderr
    return {int(line.split(":")[1]) for line in output.splitlines() if ": error:" in line}, output


def test_mypy_checks_message_fields(tmp_path):
    """Fields are typed, keyword-only, optional and read-only."""
    wrong, output = lines_with_type_errors(
        tmp_path,
        "from ottla.protocol.api.heartbeat import HeartbeatRequest\n"
        "ok = HeartbeatRequest(group_id='g', group_instance_id=None)\n"
        "epoch: int = ok.generation_id\n"
        "HeartbeatRequest(group_id=7)\n"
        "HeartbeatRequest(group='g')\n"
        "HeartbeatRequest('g')\n"
        "ok.group_id = 'h'\n"
        "name: str = ok.group_instance_id\n",
    )

    assert wrong == {4, 5, 6, 7, 8}, output


@pytest.mark.parametrize(("module", "wait"), [("client", "await "), ("client.blocking", "")])
def test_mypy_checks_keys_and_values_of_producers(tmp_path, module, wait):
    """Without a serializer they are bytes, and with one what it accepts."""
    wrong, output = lines_with_type_errors(
        tmp_path,
        f"from ottla.{module} import Producer\n"
        "from ottla.client.serializers import serialize_json, serialize_str\n"
        "async def send() -> None:\n"
        "    plain = Producer('localhost:9092')\n"
        f"    {wait}plain.send('t', b'5', key=bytearray(b'k'))\n"
        f"    {wait}plain.send('t')\n"
        f"    {wait}plain.send('t', 5)\n"
        f"    {wait}plain.send('t', '5')\n"
        f"    {wait}plain.send('t', key=5)\n"
        f"    {wait}plain.enqueue('t', 5)\n"
        f"    {wait}plain.send_many('t', [5])\n"
        "    typed = Producer('localhost:9092', value_serializer=serialize_str)\n"
        f"    {wait}typed.send('t', '5', key=b'k')\n"
        f"    {wait}typed.send('t', 5)\n"
        "    json = Producer('localhost:9092', value_serializer=serialize_json)\n"
        f"    {wait}json.send('t', 5)\n"
        f"    {wait}json.send_many('t', [5, {{'a': 1}}])\n",
    )

    assert wrong == {7, 8, 9, 10, 11, 14}, output
