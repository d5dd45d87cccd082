"""The benchmarks: every script runs in quick mode, and all results end in one page."""

import json
import re
import subprocess
import sys
import time
from importlib import import_module
from pathlib import Path
from xml.etree import ElementTree

import pytest

from ottla.cli.local_etcd import INSTALL_HINT, find_etcd

BENCH = Path(__file__).resolve().parent.parent / "bench"
SVG = "{http://www.w3.org/2000/svg}"


def load(name):
    """Import a module of bench/, whose names are not for other tests."""
    sys.path.insert(0, str(BENCH))
    try:
        return import_module(name)
    finally:
        sys.path.remove(str(BENCH))


charts, figures, report, run = load("charts"), load("figures"), load("report"), load("run")
ALL_SCRIPTS = (*run.SCRIPTS, *run.LONG_SCRIPTS)
FIGURES = [figure for section in figures.SECTIONS for figure in section.figures]


def rates(*labels):
    return {
        label: {
            "records_per_second": 1000.0 * number,
            "bytes_per_second": 100_000.0 * number,
            "server_cpu": 1e-6 * number,
            "client_cpu": 2e-6 * number,
            "server_cores": 0.5,
            "client_cores": 0.9,
            "anonymous": 25_000_000,
            "spread": 0.1,
        }
        for number, label in enumerate(labels, 1)
    }


def trials(*loads):
    rows = rates("ottla acks=1", "kafka acks=1", "redis appendfsync no")
    rows["mock, in the client"] = {"records_per_second": 2000.0, "spread": 0.1}
    return [
        {"operation": operation, "size": size, "partitions": partitions, "contenders": rows}
        for size, partitions in loads
        for operation in ("produce", "consume")
    ]


def latency(label, *, cold):
    percentiles = {"p50": 0.0004, "p90": 0.001, "p99": 0.002, "p99.9": 0.01, "max": 0.02}
    median = {end: percentiles | {"count": 2000} for end in ("delivered", "consumed")}
    return {"label": label, "cold": cold, "median": median}


RESULTS = {
    "broker": {
        "start": {
            name: {"seconds": 0.2, "private": 25e6, "anonymous": 22e6}
            for name in ("ottla", "kafka")
        },
        "versions": {"ottla": "0.1", "kafka": "4.3.0"},
        "skipped": {"redis": "no redis-server on PATH"},
        "throughput": trials((100, 12), (1024, 12)),
        "sizes": trials((10, 12), (102_400, 12)),
        "partitions": trials((100, 1), (100, 1000)),
        "single": [
            {
                "in_flight": 1,
                "contenders": {
                    "ottla acks=1": {
                        "requests_per_second": 3000.0,
                        "spread": 0.1,
                        "server_cpu": 5e-5,
                        "client_cpu": 3e-5,
                    }
                },
            }
        ],
        "latency": [latency("ottla acks=all, fsync", cold=cold) for cold in (False, True)],
    },
    "log": {
        "append": [
            {
                "size": size,
                "target": target,
                "ratio": 0.5,
                "seconds": {"log": 9e-6, "pwrite": 2e-6, "crc+pwrite": 3e-6},
            }
            for size, target in ((1024, None), (1 << 20, 0.85))
        ],
        "read": {
            "sequential": {"bytes": 1 << 20, "seconds": {"log": 0.001, "bare": 0.0008}},
            "call_seconds": {"one batch of 1 KiB": 9e-6},
        },
        "recovery": {"bytes": 1 << 20, "seconds": {"log": 0.001, "bare": 0.0008}},
        "growth": [
            {
                "batches": count,
                "segments": 8,
                "seconds": {"append": 6e-6, "read": 9e-6, "roll": 2e-4},
            }
            for count in (2000, 20_000)
        ],
        "load": [{"logs": count, "seconds": 0.1, "bytes": 350_000} for count in (100, 1000)],
    },
    "client": {
        operation: [
            {
                "operation": operation,
                "load": "",
                "contenders": rates("ottla x", "kafka-python y", "aiokafka z"),
            }
        ]
        for operation in ("produce", "consume")
    }
    | {"imports": {"aiokafka": {"ms": 300.0, "mb": 20.0}}},
    "spark": {
        "read": {
            "records": 1000,
            **{
                job: {
                    name: {"elapsed": 0.25, "cpu": 0.4, "spread": 0.1}
                    for name in ("ottla", "Spark's connector")
                }
                for job in ("count", "aggregate")
            },
        },
        "write": {
            "records": 1000,
            "contenders": {"ottla": {"elapsed": 0.9, "cpu": 1.4, "spread": 0.1}},
        },
        "batches": {"ottla": {"triggerExecution": 90.0, "addBatch": 60.0}},
    },
    "groups": {
        "rebalance": {
            count: {"best_seconds": 0.001, "median_seconds": 0.002, "cpu_seconds": 0.001}
            for count in ("2", "100")
        },
        "protocols": [
            {
                "server": "kafka",
                "protocol": "consumer",
                "members": 100,
                "best_seconds": 0.1,
                "worst_seconds": 0.3,
                "cpu_seconds": 0.2,
            }
        ],
        "commit": [
            {
                "durability": "fsync",
                "partitions": 16,
                "in_flight": 1,
                "commits_per_second": 3000.0,
                "offsets_per_second": 48_000.0,
                "cpu_seconds": 1e-4,
            }
        ],
        "start": [
            {
                "commits": 100_000,
                "shutdown": "kill -9",
                "bytes": 8_300_000,
                "records": 100_000,
                "response_seconds": 0.3,
                "first_group_seconds": 0.4,
                "all_groups_seconds": 0.5,
            }
        ],
    },
    "transactions": {
        "commit": [
            {"records": 10, "partitions": 12, "producers": 1}
            | {"contenders": rates("ottla, page-cache", "kafka")}
        ],
        "latency": [{"interval": 0.1, "contenders": {"ottla, fsync": {"p50": 0.05, "p99": 0.1}}}],
    },
    "security": {
        "tls": [
            {"operation": operation, "contenders": rates("ottla, SSL", "kafka, SSL")}
            for operation in ("produce", "consume")
        ],
        "authorizer": {
            label: {"requests_per_second": 9e4, "server_cpu": 1e-5, "best_cpu": 9e-6, "spread": 0.1}
            for label in ("no authorizer", "authorizer")
        },
        "connections": [{"protocol": "SSL", "contenders": rates("ottla, SSL", "kafka, SSL")}],
        "checks": [{"acls": 1000, "remembered": 2e-7, "decided": 3e-6}],
    },
    "cluster": {
        "throughput": [
            {
                "operation": operation,
                "partitions": 6,
                "acks": "1",
                "contenders": rates("1 broker", "3 brokers"),
            }
            for operation in ("produce", "consume")
        ],
        "create": [
            {"label": "3 brokers", "target": "another broker", "partitions": 60}
            | {name: {"p50": 0.02, "p95": 0.03} for name in ("response", "visible")}
        ],
        "metadata": [
            {"partitions": count, "bytes": 26 * count, "cpu_seconds": 1e-6 * count}
            | {"list_seconds": 0.01}
            | {name: {"p50": 0.02, "p95": 0.03} for name in ("all", "one", "delay")}
            for count in (1000, 10_000)
        ],
    },
    "scale": {
        "partitions": [
            {"partitions": 10_000, "create_seconds": 5e-4, "stop_seconds": 3.0}
            | {name: {"median": 1.0, "max": 1.1} for name in ("clean_start", "kill_start")}
            | {"opened_bytes": 4000, "filled_bytes": 5000, "idle_cores": 0.001}
            | {"metadata": {"cpu_seconds": 0.003}}
            | {f"{api}_{scope}": 3e-5 for api in ("produce", "fetch") for scope in ("one", "all")}
        ],
        "groups": [
            {"groups": 1000, "members": 10_000, "heartbeats_per_second": 3300.0, "cores": 0.1}
            | {"cpu": 3e-5, "member_bytes": 2000}
        ],
        "connections": [
            {"connections": 9000, "open_cpu": 5e-5, "connection_bytes": 3000, "idle_cores": 0.0}
            | {"request_cpu": 2e-5}
        ],
    },
    "replication": {
        "throughput": [
            {
                "operation": operation,
                "size": 100,
                "partitions": 12,
                "contenders": rates("ottla", "kafka"),
            }
            for operation in ("produce", "consume")
        ],
        "latency": [
            {"label": "ottla", "rate": 500}
            | {
                "median": {
                    end: {"p50": 0.001, "p99": 0.004, "p99.9": 0.01}
                    for end in ("delivered", "consumed")
                }
            }
        ],
        "failover": [
            {"signal": "SIGKILL", "label": "ottla"}
            | {"worst": {"partitions": 4, "first": 6.1, "last": 6.2}}
        ],
        "catch-up": [
            {"label": "ottla", "bytes": 1 << 28, "start_seconds": 0.4, "seconds": 1.0}
            | {"bytes_per_second": 2.7e8}
        ],
        "partitions": [
            {"label": "ottla", "partitions": 10_000, "create_seconds": 20.0, "idle_cores": 0.1}
            | {"list_seconds": 0.2, "anonymous": 200_000_000}
        ],
    },
    "records": {
        "shapes": [
            {"shape": "100 bytes", "task": task, "compiled": 5e6, "python": 5e5, "aiokafka": 2e6}
            for task in ("encode", "decode", "to Arrow")
        ]
    },
    "codec": {
        "messages": [
            {"message": "v9, 1 × 1", "operation": "encode", "hand": 1e-6, "compiled": 2e-6}
            | {"construct": 9e-5}
        ]
    },
    "imports": {"imports": {"import ottla.protocol": {"ms": 0.4, "mb": 0.1}}},
}


def write_record(directory, bench, results, **fields):
    """Write a result file as a script does, and return the record."""
    record = {
        "bench": bench,
        "command": f"python bench/{bench}.py",
        "quick": False,
        "date": "2026-01-01T00:00:00Z",
        "commit": "abc1234",
        "cpu": "2 × a processor",
        "other_cores": 0.1,
        "versions": {"python": "3.11.9", "ottla": "0.1"},
        "results": results,
    } | fields
    directory.mkdir(exist_ok=True)
    number = len(list(directory.iterdir()))
    (directory / f"{bench}-{number}.json").write_text(json.dumps(record))
    return record


def write_page(tmp_path):
    """Write the page; return it, and the titles of the figures without results."""
    missing = report.write(tmp_path / "results", tmp_path / "docs")
    return (tmp_path / "docs" / "benchmarks.md").read_text(), missing


def figure_text(page, title):
    """Return the part of the page below the heading of a figure."""
    return page.partition(f"### {title}\n")[2].partition("\n#")[0]


# -- page ------------------------------------------------------------------------------------------


def test_the_page_has_every_figure_with_its_source(tmp_path):
    for bench, results in RESULTS.items():
        write_record(tmp_path / "results", bench, results)

    page, missing = write_page(tmp_path)

    assert not missing
    for figure in FIGURES:
        text = figure_text(page, figure.title)
        assert f"`python bench/{figure.bench}.py`; 2026-01-01; commit abc1234" in text, figure.title
        assert "| ---: |" in text, figure.title
    plots = re.findall(r"\]\((plots/.*?\.svg)\)", page)
    assert len(plots) > 15
    for plot in plots:
        picture = ElementTree.parse(tmp_path / "docs" / plot).getroot()
        assert picture.tag == f"{SVG}svg"
    assert "Apache Kafka 4.3.0" in page


def test_a_figure_without_results_names_its_command(tmp_path):
    write_record(tmp_path / "results", "codec", RESULTS["codec"])

    page, missing = write_page(tmp_path)

    assert "Requests and responses" not in missing
    assert len(missing) == len(FIGURES) - 1
    assert "`python bench/broker.py`" in figure_text(page, "Latency")
    assert "svg" not in figure_text(page, "Latency")


def test_a_page_without_results_names_make_bench(tmp_path):
    (tmp_path / "results").mkdir()

    page, missing = write_page(tmp_path)

    assert len(missing) == len(FIGURES)
    assert "run `make bench`" in page


def test_plots_without_results_are_deleted(tmp_path):
    record = write_record(tmp_path / "results", "groups", RESULTS["groups"])
    write_page(tmp_path)
    plots = tmp_path / "docs" / "plots"
    assert list(plots.iterdir())

    (tmp_path / "results" / "groups-0.json").write_text(json.dumps(record | {"results": {}}))
    write_page(tmp_path)

    assert not list(plots.iterdir())


def test_the_newest_result_of_each_part_counts(tmp_path):
    new = {"rebalance": RESULTS["groups"]["rebalance"]}
    old = new | {"commit": RESULTS["groups"]["commit"]}
    write_record(tmp_path / "results", "groups", new, date="2026-01-03T00:00:00Z", commit="new")
    write_record(tmp_path / "results", "groups", old, date="2026-01-02T00:00:00Z", commit="old")

    page, _missing = write_page(tmp_path)

    assert "commit new" in figure_text(page, "Rebalance time by group size")
    assert "commit old" in figure_text(page, "Offset commits")


def test_a_quick_result_counts_only_without_a_full_one(tmp_path):
    results = tmp_path / "results"
    later = {"quick": True, "date": "2026-09-09T00:00:00Z"}
    write_record(results, "codec", RESULTS["codec"], commit="full")
    write_record(results, "codec", RESULTS["codec"], commit="fast", **later)
    write_record(results, "imports", RESULTS["imports"], quick=True)

    page, _missing = write_page(tmp_path)

    assert "commit full" in figure_text(page, "Requests and responses")
    assert "quick" not in figure_text(page, "Requests and responses")
    assert "quick run" in figure_text(page, "Import time of ottla.protocol")


def test_the_page_reports_a_busy_machine_and_skipped_servers(tmp_path):
    results = {name: RESULTS["broker"][name] for name in ("latency", "skipped")}
    write_record(tmp_path / "results", "broker", results, other_cores=1.6)

    page, _missing = write_page(tmp_path)

    assert "other processes used 1.6 cores" in figure_text(page, "Latency")
    assert "Redis was not measured: no redis-server on PATH." in figure_text(page, "Latency")


def test_a_figure_whose_contenders_all_failed_has_no_plot(tmp_path):
    warm = [latency("ottla acks=all, fsync", cold=False)]
    write_record(tmp_path / "results", "broker", {"latency": warm})

    page, _missing = write_page(tmp_path)

    assert "svg" in figure_text(page, "Latency")
    assert "svg" not in figure_text(page, "Latency during cold reads")


# -- plots -----------------------------------------------------------------------------------------


def test_plots_contain_labels_as_text_and_are_reproducible():
    panels = [figures.Bars("title", "unit", {"ottla <a>": 10.0, "kafka b": 5.0})]

    svg = charts.draw("figure", panels)

    texts = [text.text for text in ElementTree.fromstring(svg).iter(f"{SVG}text")]
    assert {"title", "unit", "ottla <a>", "kafka b", "10", "5"} <= set(texts)
    assert charts.draw("figure", panels) == svg


def test_lines_of_one_contender_differ_in_dashes_and_markers():
    values = {f"ottla {name}": [(1, 2), (10, 20)] for name in "ab"}

    svg = charts.draw("figure", [figures.Lines("title", "y", "x", values)])

    colour = charts.color_of("ottla")
    dashed = [style for style in re.findall(r'style="([^"]*)"', svg) if "stroke-dasharray" in style]
    assert any(colour in style for style in dashed)
    assert len(set(re.findall(r'xlink:href="#(\w+)"[^>]*style="fill: ' + colour, svg))) == 2


# -- runner ----------------------------------------------------------------------------------------


def test_a_script_gets_the_time_that_later_ones_do_not_need():
    script, later = run.Script("x", 100, 10), [run.Script("y", 100, 10)]

    assert run.choose(script, later, 200, 1.0, is_quick=False) == ("full", 190)
    assert run.choose(script, later, 105, 1.0, is_quick=False) == ("quick", 95)
    assert run.choose(script, later, 19, 1.0, is_quick=False)[0] == ""
    # At half the expected pace, the time is too short for a full run.
    assert run.choose(script, later, 200, 2.0, is_quick=False) == ("quick", 180)
    assert run.choose(script, later, 200, 1.0, is_quick=True)[0] == "quick"


class RecordingDisplay:
    """A display that records what it is asked to show."""

    def __init__(self):
        self.steps, self.lines, self.outcomes = [], [], []

    def begin(self, script, seconds):
        pass

    def step(self, text):
        self.steps.append(text)

    def output(self, line):
        self.lines.append(line)

    def end(self, outcome):
        self.outcomes.append(outcome)


def run_source(monkeypatch, tmp_path, source, limit=60.0):
    """Run a script with this source; return its outcome and the display."""
    (tmp_path / "one.py").write_text(source)
    monkeypatch.setattr(run, "SCRIPT_DIRECTORY", tmp_path)
    display = RecordingDisplay()
    return run.run(run.Script("one", 1, 1), "full", limit, [], display), display


@pytest.mark.process  # bench/run.py starts it
def test_the_runner_shows_steps_and_tables(monkeypatch, tmp_path):
    source = "import sys\nprint('a table')\nprint('step one', file=sys.stderr)"

    outcome, display = run_source(monkeypatch, tmp_path, source)

    assert outcome.result == "done"
    assert display.lines == ["a table"]
    assert "step one" in display.steps


@pytest.mark.process  # bench/run.py starts it
def test_the_runner_shows_the_errors_of_a_failed_script(monkeypatch, tmp_path):
    outcome, display = run_source(monkeypatch, tmp_path, "raise SystemExit('no such thing')")

    assert outcome.result == "failed (1)"
    assert "no such thing" in display.lines


@pytest.mark.process  # bench/run.py starts it
def test_a_script_that_exceeds_its_time_is_terminated_and_can_clean_up(monkeypatch, tmp_path):
    marker = tmp_path / "cleaned"
    source = f"""
import signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
try:
    time.sleep(60)
finally:
    open({str(marker)!r}, "w").close()
"""
    start = time.monotonic()

    # Long enough for it to install its signal handler.
    outcome, _display = run_source(monkeypatch, tmp_path, source, limit=3.0)

    assert outcome.result == "timed out"
    assert marker.exists()
    assert time.monotonic() - start < 30


def test_the_runner_knows_every_script():
    scripts = {
        path.stem for path in BENCH.glob("*.py") if re.search(r"recording\(\"", path.read_text())
    }

    assert {script.name for script in ALL_SCRIPTS} == scripts


def test_all_scripts_take_less_than_twenty_minutes():
    assert sum(script.seconds for script in run.SCRIPTS) < 20 * 60 - run.GRACE_SECONDS
    assert sum(script.quick_seconds for script in run.SCRIPTS) < 5 * 60


# -- scripts ---------------------------------------------------------------------------------------


def call(name, *arguments):
    command = [sys.executable, str(BENCH / f"{name}.py"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)


@pytest.mark.parametrize("name", [script.name for script in ALL_SCRIPTS])
def test_every_script_has_help(name):
    done = call(name, "--help")

    assert done.returncode == 0, done.stderr
    assert "--quick" in done.stdout


@pytest.mark.parametrize(
    ("name", "options", "title"),
    [
        ("groups", ["--only", "rebalance"], "Rebalance time by group size"),
        ("cluster", ["--only", "create"], "Topic creation"),
        ("client", ["--only", "produce"], "Produce"),
        pytest.param(
            *(
                "replication",
                ["--clusters", "ottla", "--only", "catch-up"],
                "Catch-up of a follower",
            ),
            marks=pytest.mark.skipif(find_etcd() is None, reason=f"no etcd: {INSTALL_HINT}"),
        ),
    ],
)
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")
def test_results_of_scripts_with_brokers_are_on_the_page(tmp_path, name, options, title):
    done = call(name, "--quick", *options, "--results", str(tmp_path / "results"))
    assert done.returncode == 0, done.stderr

    page, missing = write_page(tmp_path)

    assert title not in missing
    assert f"`{' '.join(['python', f'bench/{name}.py', '--quick', *options])}`" in page
    # The script prints the same tables as the page.
    header = re.search(r"\| (.*?) \|", figure_text(page, title))[1]
    assert f"\n{title}\n\n  {header}" in done.stdout


def test_results_of_scripts_without_brokers_are_on_the_page(tmp_path):
    results = tmp_path / "results"
    for name, *parts in (("codec",), ("log", "--only", "append", "growth", "load", "recovery")):
        done = call(name, "--quick", *parts, "--results", str(results))
        assert done.returncode == 0, done.stderr

    page, missing = write_page(tmp_path)

    measured = {"Requests and responses", "Crash recovery", "Append, read and roll by log length"}
    assert measured.isdisjoint(missing)
    assert "`python bench/log.py --quick --only append growth load recovery`" in page
    (record,) = [json.loads(path.read_text()) for path in results.glob("codec-*.json")]
    assert record["quick"]
    assert {"date", "commit", "cpu", "other_cores", "seconds"} <= set(record)
    assert record["versions"]["python"].startswith("3.")


@pytest.mark.parametrize("ending", ["raise OSError('no room')", "os.kill(os.getpid(), 15)"])
def test_finished_parts_of_an_aborted_script_are_kept(tmp_path, ending):
    source = f"""
import os
from benchmark import command_line, recording
options = command_line("x", quick="").parse_args()
with recording("one", options) as results:
    results["first"] = [1]
    {ending}
"""
    command = [sys.executable, "-c", source, "--results", str(tmp_path)]

    done = subprocess.run(command, cwd=BENCH, capture_output=True, timeout=60, check=False)

    assert done.returncode == 1
    (path,) = tmp_path.glob("one-*.json")
    assert json.loads(path.read_text())["results"] == {"first": [1]}
