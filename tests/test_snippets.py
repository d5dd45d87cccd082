"""Every snippet and every command in the documentation is run; snippets.py says how."""

import asyncio
import glob
import inspect
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import tomllib
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from harness.daemon import Daemon, free_port
from harness.snippets import (
    DEFAULT_ADDRESS,
    PAGES,
    ROOT,
    blocks_of,
    is_like,
    name_of,
    simple_commands,
    steps_of,
)
from ottla.__main__ import ottla
from ottla.broker.cluster.cluster_file import read_cluster_file
from ottla.broker.config.broker_config import BrokerConfig

BLOCKS = [block for page in PAGES for block in blocks_of(page)]
#: Pages whose Python has a test of its own, which looks at what it prints too.
ELSEWHERE = {
    "docs/client.md": "tests/client/test_client_docs.py",
    "docs/spark.md": "tests/spark/test_examples.py",
}
#: So many blocks may go without being run, each with a reason beside it.
MOST_NOT_RUN = 6
PATIENCE_SECONDS = 60

MAKEFILE = (ROOT / "Makefile").read_text()
TARGETS = set(re.findall(r"^([a-z-]+):", MAKEFILE, re.MULTILINE))
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]

# How a command ends that was understood: done, not there, there already, refused, partly done.
ANSWERED = (0, 5, 6, 7, 9)
#: What does not end by itself, takes too long, or needs another cluster: it is only parsed.
ENDLESS = re.compile(
    r"^(broker start|console|cluster up|perf)|--follow|--watch|--group|--share|--broker [1-9]"
    r"|^cluster (export-metadata|migrate|restore)"
)


def chosen(*wanted):
    """Return blocks as parameters, named by their location."""
    return pytest.mark.parametrize("block", wanted, ids=str)


@pytest.fixture
def broker(tmp_path):
    with Daemon(tmp_path / "broker", "--set", "group.initial.rebalance.delay.ms=0") as started:
        yield started


# Python.


@pytest.mark.parametrize(
    "page",
    sorted(
        {block.page for block in BLOCKS if block.is_python} - {ROOT / page for page in ELSEWHERE}
    ),
    ids=name_of,
)
def test_python_runs(page, request, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for block in blocks_of(page):
        if not block.is_python or block.needs or block.quoted or block.not_run:
            continue
        text = block.text
        if DEFAULT_ADDRESS in text or "bootstrap" in text:
            broker = request.getfixturevalue("broker")
            text = text.replace(DEFAULT_ADDRESS, broker.address)
        if re.search(r"^(async )?def test_", text, re.MULTILINE):
            run_tests(text, tmp_path)
            continue
        names = {"__name__": "__main__"}
        exec(compile(text, str(block), "exec"), names)
        main = names.get("main")
        if main is not None and "bootstrap" in inspect.signature(main).parameters:
            done = main()
            if inspect.isawaitable(done):
                asyncio.run(asyncio.wait_for(done, PATIENCE_SECONDS))


def run_tests(text, folder):
    """Have pytest run a block, as a user would: in a folder that knows nothing of ours."""
    path = folder / "test_snippet.py"
    path.write_text(text)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(path)]

    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, check=False, timeout=PATIENCE_SECONDS
    )

    assert done.returncode == 0, done.stdout + done.stderr


@chosen(*(block for block in BLOCKS if block.quoted))
def test_what_is_quoted_is_there(block):
    assert block.text in (ROOT / block.quoted).read_text()


def test_pages_that_are_run_elsewhere_are_run_there():
    for page, test in ELSEWHERE.items():
        assert Path(page).name in (ROOT / test).read_text()


def test_what_needs_spark_is_run_by_the_tests_of_spark():
    assert {block.needs for block in BLOCKS} <= {"", "spark"}
    assert 'block.needs == "spark"' in (ROOT / "tests/spark/test_readme.py").read_text()


def test_few_snippets_are_not_run():
    left_out = [f"{block}: {block.not_run}" for block in BLOCKS if block.not_run]

    assert len(left_out) <= MOST_NOT_RUN, left_out


# Transcripts.


@chosen(*(block for block in BLOCKS if block.is_transcript and not block.not_run))
def test_a_transcript_is_what_a_shell_shows(block, tmp_path):
    steps = steps_of(block)
    if any("kcat" in step.command for step in steps) and not on_the_path("kcat"):
        pytest.skip("there is no kcat here")

    outputs = run_in_a_shell([step.command for step in steps], tmp_path)

    for step, output in zip(steps, outputs, strict=True):
        promised = [line for line in step.printed if line.strip()]
        printed = [line for line in output.splitlines() if line.strip()]
        if step.command.endswith("&"):
            # It goes on, and may say more than there is room for.
            printed = [line for line in printed if any(is_like(line, one) for one in promised)]
        assert len(printed) == len(promised), f"$ {step.command}\n{output}"
        for line, wanted in zip(printed, promised, strict=True):
            assert is_like(line, wanted), f"$ {step.command}\n{output}"


def run_in_a_shell(commands, folder):
    """Run commands one after the other in one shell, and give what each has printed.

    What is started in the background, with & behind it, is a broker: it listens on a port of its
    own, is waited for before the next command, and is ended at the end.
    """
    address = f"127.0.0.1:{free_port()}"
    environ = {name: text for name, text in os.environ.items() if not name.startswith("OTTLA_")}
    environ |= {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "OTTLA_LISTENERS": f"PLAINTEXT://{address}",
        "OTTLA_BOOTSTRAP": address,
        "XDG_CONFIG_HOME": str(folder),
        "LANG": "C.UTF-8",
    }
    script = ["trap 'kill $(jobs -p); wait' EXIT"]
    for number, command in enumerate(commands):
        text = recipe_of(command).replace(DEFAULT_ADDRESS, address)
        into = f">{number}.out 2>&1"
        if text.endswith("&"):
            script.append(f"{text[:-1]} {into} &")
            script.append(f"until grep -qs ready {number}.out; do sleep 0.02; done")
        else:
            script.append(f"{{ {text}\n}} {into}")
    shell = subprocess.Popen(
        ["bash", "-c", "\n".join(script)],
        cwd=folder,
        env=environ,
        stdin=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        shell.wait(PATIENCE_SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(shell.pid, signal.SIGKILL)
        shell.wait()
        raise
    return [(folder / f"{number}.out").read_text() for number in range(len(commands))]


def recipe_of(command):
    """Return what `make` would run, with the interpreter that runs the tests."""
    command = command.partition(" #")[0].strip()
    if match := re.fullmatch(r"make ([a-z-]+)( &)?", command):
        recipe = re.search(rf"^{match[1]}:.*\n((?:\t.*\n)+)", MAKEFILE, re.MULTILINE)[1]
        command = recipe.strip() + (match[2] or "")
    return command.replace(".venv/bin/", f"{Path(sys.executable).parent}/")


def on_the_path(program):
    return any((Path(folder) / program).exists() for folder in os.environ["PATH"].split(":"))


# Commands.


@pytest.fixture(scope="module")
def broker_of_the_stage(tmp_path_factory):
    configs = ("authorizer.class.name=acl", "super.users=User:ANONYMOUS")
    flags = [flag for config in configs for flag in ("--set", config)]
    with Daemon(tmp_path_factory.mktemp("stage"), *flags) as started:
        yield started


@pytest.fixture
def stage(broker_of_the_stage, tmp_path, monkeypatch):
    """A broker with what the examples speak of, in a folder of their own."""
    address = broker_of_the_stage.address
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OTTLA_BOOTSTRAP", address)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    for user in ("ADMIN", "ALICE"):
        monkeypatch.setenv(f"{user}_PASSWORD", "secret")
    (tmp_path / "alice.secret").write_text("secret")
    for words in (
        ["topic", "create", "orders", "bills", "-p", "2", "--if-not-exists"],
        ["group", "reset", "billing", "--to", "start", "--topic", "orders", "--yes"],
        ["profile", "set", "staging", "--bootstrap", address],
        ["profile", "set", "admin", "--bootstrap", address],
    ):
        assert invoke(words, address).exit_code == 0
    return address


def invoke(words, address):
    """Run a command in this process, with the broker that there is."""
    words = [re.sub(r"^[\w.]+:9092\b.*", address, word) for word in words]
    return CliRunner().invoke(ottla, words, input="", prog_name="ottla")


def parse(words):
    """Find a command, and let it take its words. Raises click.UsageError."""
    command, rest = ottla, list(words)
    context = click.Context(ottla, info_name="ottla")
    while isinstance(command, click.Group):
        found = command.get_command(context, rest[0])
        assert found is not None, f"there is no command {rest[0]!r}"
        command, rest = found, rest[1:]
    with command.make_context(command.name, rest):
        pass


@chosen(*(block for block in BLOCKS if block.commands))
def test_commands_are_commands(block, stage, tmp_path):
    for line in block.commands:
        check_line(line, stage, tmp_path)


def check_line(line, address, folder):
    """Check all commands in a line."""
    for words in simple_commands(line):
        check_command(words, address, folder)


def check_command(words, address, folder):
    program, *rest = words
    if program == "ottla" and rest not in (["--help"], ["--version"]):
        for word in rest:
            make_file(word, folder)
        rest = [found for word in rest for found in sorted(glob.glob(word)) or [word]]
        if ENDLESS.search(" ".join(rest)):
            parse(rest)
        else:
            done = invoke(rest, address)
            is_asked = "confirm with --yes" in done.output
            assert done.exit_code in ANSWERED or is_asked, f"{shlex.join(words)}\n{done.output}"
    elif program == "make":
        assert set(filter(re.compile(r"[a-z-]+$").match, rest)) <= TARGETS, words
    elif program in ("python", ".venv/bin/python"):
        check_python(rest)
    elif program == "pip":
        for extra in re.findall(r"\[(\w+)\]", " ".join(rest)):
            assert extra in EXTRAS
    elif program == "docker":
        assert rest[0] == "build" or (ROOT / "docker-compose.yml").exists()


def check_python(words):
    """See that what Python is to run is there."""
    if words[:1] == ["-m"]:
        assert words[1] in ("ottla", "pytest", "chaos", "pip")
    elif words and not words[0].startswith("-"):
        assert (ROOT / words[0]).exists(), words


def make_file(word, folder):
    """Make a file or data directory that a command is to read."""
    if word in ("ottla-data", "ottla-cluster/broker-*"):
        word = word.replace("*", "1")
        for name in ("orders-0", "orders-1"):
            (folder / word / name).mkdir(parents=True, exist_ok=True)
            (folder / word / name / f"{0:020d}.log").touch()
    if word == "plan.json":
        partitions = [{"topic": "orders", "partition": 0, "replicas": [0]}]
        (folder / word).write_text(json.dumps({"version": 1, "partitions": partitions}))
    if re.search(r"\.(txt|jpg|csv|log|toml|properties)$|^metadata-.*json$", word):
        path = folder / word.replace("*", "1")
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(
                '[[brokers]]\nid = 2\naddress = "localhost:9092"\n' if ".toml" in word else ""
            )


# Files.


FILES = ("toml", "properties", "json")


@chosen(*(block for block in BLOCKS if block.language in FILES and not block.not_run))
def test_files_can_be_read(block, tmp_path):
    if block.language == "json":
        json.loads(block.text)
        return
    path = tmp_path / f"file.{block.language}"
    path.write_text(block.text)
    if block.language == "properties":
        settings = dict(
            line.split("=", 1) for line in block.text.splitlines() if line[0] not in "#!"
        )
        BrokerConfig.of(settings)
    elif "brokers" in tomllib.loads(block.text):
        BrokerConfig.of({"broker.id": "0", **read_cluster_file(path)})


# These checks can fail.


@pytest.mark.parametrize(
    "line",
    [
        "ottla topic create orders --partition-count 3",
        "ottla topics list",
        "seq 3 | ottla produce orders --keys",
        'eval "$(ottla completions bash)"',
        "make tea",
        "python examples/nothing.py",
        'pip install "ottla[everything]"',
    ],
)
def test_a_wrong_command_is_noticed(line, stage, tmp_path):
    with pytest.raises(AssertionError):
        check_line(line, stage, tmp_path)


def test_a_line_that_was_not_promised_is_noticed():
    assert is_like("2026-11-17 INFO  ready  milliseconds=4", "… ready milliseconds=…")
    assert not is_like("hello there", "hello")
    assert not is_like("0\t1", "0\t0")
