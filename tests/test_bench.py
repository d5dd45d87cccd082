"""The benchmarks: each can be asked what it does and run in a moment, and all end in one page."""

import json
import re
import subprocess
import sys
import time
from importlib import import_module
from pathlib import Path
from xml.etree import ElementTree

import pytest

BENCH = Path(__file__).resolve().parent.parent / "bench"
SVG = "{http://www.w3.org/2000/svg}"


def load(name):
    """Import a module of bench/, whose names are not for other tests."""
    sys.path.insert(0, str(BENCH))
    try:
        return import_module(name)
    finally:
        sys.path.remove(str(BENCH))


chart, report, run = load("chart"), load("report"), load("run")
FIGURES = [figure for section in report.SECTIONS for figure in section.figures]


def rates(*labels):
    return {
        label: {
            "records_per_second": 1000.0 * number,
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
    best = rates("ottla acks=1", "kafka acks=1", "redis appendfsync no")
    return [
        {"verb": verb, "size": size, "partitions": partitions, "best": best}
        for size, partitions in loads
        for verb in ("produce", "consume")
    ]


def a_latency(label, *, cold):
    percentiles = {"p50": 0.0004, "p90": 0.001, "p99": 0.002, "p99.9": 0.01, "most": 0.02}
    best = {verb: percentiles | {"count": 2000} for verb in ("delivered", "consumed")}
    return {"label": label, "against": "kafka acks=all", "cold": cold, "best": best}


A_RUN = {"records": 900, "requests": 900, "seconds": 0.3, "server_cpu": 0.05, "client_cpu": 0.03}
RESULTS = {
    "broker": {
        "start": {
            name: {"seconds": [0.3, 0.2], "idle": [{"private": 25e6, "anonymous": 22e6}]}
            for name in ("ottla", "kafka")
        },
        "versions": {"ottla": "0.1", "kafka": "4.3.0"},
        "left_out": {"redis": "no redis-server on PATH"},
        "throughput": trials((100, 12), (1024, 12)),
        "sizes": trials((10, 12), (102_400, 12)),
        "partitions": trials((100, 1), (100, 1000)),
        "single": [{"on_their_way": 1, "runs": {"ottla acks=1": [A_RUN, A_RUN]}}],
        "latency": [a_latency("ottla acks=all, fsync", cold=cold) for cold in (False, True)],
    },
    "log": {
        "append": [
            {"size": size, "aim": aim, "seconds": {"log": 9e-6, "pwrite": 2e-6, "crc+pwrite": 3e-6}}
            for size, aim in ((1024, None), (1 << 20, 0.85))
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
        verb: [{"verb": verb, "load": "", "best": rates("ottla x", "kafka-python y", "aiokafka z")}]
        for verb in ("produce", "consume")
    }
    | {"imports": {"aiokafka": {"ms": 300.0, "mb": 20.0}}},
    "spark": {
        "read": {
            "records": 1000,
            **{
                job: {
                    name: {"elapsed": 0.25, "cpu": 0.4} for name in ("ottla", "Spark's connector")
                }
                for job in ("count", "aggregate")
            },
        },
        "write": {"records": 1000, "best": {"ottla": {"elapsed": 0.9, "cpu": 1.4}}},
        "batches": {"ottla": {"triggerExecution": 90.0, "addBatch": 60.0}},
    },
    "groups": {
        "gather": {
            count: {"best_seconds": 0.001, "median_seconds": 0.002, "cpu_seconds": 0.001}
            for count in ("2", "100")
        },
        "commit": {"fsync/16/1": {"per_second": 3000.0, "cpu_seconds": 1e-4, "cpu_share": 0.3}},
        "start": [
            {
                "commits": 100_000,
                "how": "kill -9",
                "bytes": 8_300_000,
                "records": 100_000,
                "answers_seconds": 0.3,
                "first_seconds": 0.4,
                "seconds": 0.5,
            }
        ],
    },
    "cluster": {
        "throughput": [
            {"verb": verb, "partitions": 6, "acks": "1", "best": rates("1 broker", "3 brokers")}
            for verb in ("produce", "consume")
        ],
        "create": [
            {"label": "3 brokers", "way": "another broker", "partitions": 60}
            | {name: {"p50": 0.02, "p95": 0.03, "most": 0.04} for name in ("answered", "seen")}
        ],
        "metadata": [
            {"partitions": count, "bytes": 26 * count, "cpu_seconds": 1e-6 * count}
            | {"listed_seconds": 0.01}
            | {name: {"p50": 0.02, "p95": 0.03} for name in ("all", "one", "waits")}
            for count in (1000, 10_000)
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
            {"message": "v9, 1 × 1", "way": "encode", "hand": 1e-6, "compiled": 2e-6}
            | {"construct": 9e-5}
        ]
    },
    "imports": {"imports": {"import ottla.protocol": {"ms": 0.4, "mb": 0.1}}},
}


def put(folder, bench, results, **circumstances):
    """Write results as a script does, and give the record."""
    record = {
        "bench": bench,
        "command": f"python bench/{bench}.py",
        "quick": False,
        "date": "2026-01-01T00:00:00Z",
        "commit": "abc1234",
        "cpu": "2 × a processor",
        "load": 0.1,
        "versions": {"python": "3.11.9", "ottla": "0.1"},
        "results": results,
    } | circumstances
    folder.mkdir(exist_ok=True)
    number = len(list(folder.iterdir()))
    (folder / f"{bench}-{number}.json").write_text(json.dumps(record))
    return record


def written(tmp_path):
    """Write the page; give it, and the titles of what is missing."""
    missing = report.write(tmp_path / "results", tmp_path / "docs")
    return (tmp_path / "docs" / "benchmarks.md").read_text(), missing


def part_of(page, title):
    """Give what the page says of a figure."""
    return page.partition(f"### {title}\n")[2].partition("\n#")[0]


# -- the page --------------------------------------------------------------------------------------


def test_every_figure_is_on_the_page_with_what_made_it(tmp_path):
    for bench, results in RESULTS.items():
        put(tmp_path / "results", bench, results)

    page, missing = written(tmp_path)

    assert not missing
    for figure in FIGURES:
        text = part_of(page, figure.title)
        assert f"`python bench/{figure.bench}.py`; 2026-01-01; commit abc1234" in text, figure.title
        assert "| ---: |" in text or ".svg)" in text, figure.title
    plots = re.findall(r"\]\((plots/.*?\.svg)\)", page)
    assert len(plots) > 15
    for plot in plots:
        picture = ElementTree.parse(tmp_path / "docs" / plot).getroot()
        assert picture.tag == f"{SVG}svg"
        assert picture.find(f"{SVG}title").text
    assert "Apache Kafka 4.3.0" in page


def test_a_figure_that_was_never_measured_says_how_to_get_it(tmp_path):
    put(tmp_path / "results", "codec", RESULTS["codec"])

    page, missing = written(tmp_path)

    assert "Messages" not in missing
    assert len(missing) == len(FIGURES) - 1
    assert "`python bench/broker.py` measures it" in part_of(page, "Latency")
    assert "svg" not in part_of(page, "Latency")


def test_a_page_of_nothing_says_so(tmp_path):
    (tmp_path / "results").mkdir()

    page, missing = written(tmp_path)

    assert len(missing) == len(FIGURES)
    assert "`make bench` does it" in page


def test_a_plot_of_what_is_missing_now_is_removed(tmp_path):
    record = put(tmp_path / "results", "groups", RESULTS["groups"])
    written(tmp_path)
    plots = tmp_path / "docs" / "plots"
    assert list(plots.iterdir())

    (tmp_path / "results" / "groups-0.json").write_text(json.dumps(record | {"results": {}}))
    written(tmp_path)

    assert not list(plots.iterdir())


def test_the_newest_of_each_part_counts(tmp_path):
    old, new = ({"gather": RESULTS["groups"]["gather"]} for _ in range(2))
    old |= {"commit": RESULTS["groups"]["commit"]}
    put(tmp_path / "results", "groups", new, date="2026-01-03T00:00:00Z", commit="new")
    put(tmp_path / "results", "groups", old, date="2026-01-02T00:00:00Z", commit="old")

    page, _missing = written(tmp_path)

    assert "commit new" in part_of(page, "A rebalance against the number of members")
    assert "commit old" in part_of(page, "Commits")


def test_a_quick_run_counts_only_where_there_is_no_other(tmp_path):
    results = tmp_path / "results"
    put(results, "codec", RESULTS["codec"], commit="full")
    put(results, "codec", RESULTS["codec"], commit="fast", quick=True, date="2026-09-09T00:00:00Z")
    put(results, "records", RESULTS["records"], quick=True)

    page, _missing = written(tmp_path)

    assert "commit full" in part_of(page, "Messages")
    assert "quick" not in part_of(page, "Messages")
    assert "a quick run" in part_of(page, "Records")


def test_a_busy_machine_and_a_peer_that_was_not_there_are_told(tmp_path):
    put(tmp_path / "results", "broker", RESULTS["broker"], load=6.0)

    page, _missing = written(tmp_path)

    assert "a load of 6.0" in part_of(page, "Latency")
    assert "Redis is left out: no redis-server on PATH." in part_of(page, "Latency")


def test_a_part_that_failed_for_all_is_no_plot(tmp_path):
    warm = [a_latency("ottla acks=all, fsync", cold=False)]
    put(tmp_path / "results", "broker", RESULTS["broker"] | {"latency": warm})

    page, _missing = written(tmp_path)

    assert "svg" in part_of(page, "Latency")
    assert "svg" not in part_of(page, "Latency while cold data is read")


# -- plots -----------------------------------------------------------------------------------------


def test_bars_are_as_long_as_their_values():
    bars = [chart.Bar("<a>", "ottla", 10.0), chart.Bar("b", "kafka", 5.0)]
    picture = ElementTree.fromstring(chart.draw("x", [chart.Bars("t", "u", bars)]))

    lengths = [
        float(bar.get("width"))
        for bar in picture.iter(f"{SVG}rect")
        if bar.get("class") != "ground"
    ]

    assert lengths[0] == pytest.approx(2 * lengths[1], rel=0.01)
    assert "<a>" in [text.text for text in picture.iter(f"{SVG}text")]


def test_lines_of_one_colour_differ_in_dashes_and_all_in_markers():
    series = [chart.Series(name, "ottla", [(1, 2), (10, 20)]) for name in "ab"]
    picture = ElementTree.fromstring(chart.draw("x", [chart.Lines("t", "y", "x", series)]))

    paths = [path for path in picture.iter(f"{SVG}path") if "ottla" in path.get("class")]
    dashes = {path.get("stroke-dasharray") for path in paths if "line" in path.get("class")}
    markers = {path.get("d") for path in paths if "line" not in path.get("class")}

    assert len(dashes) == 2
    assert len(markers) == 2


@pytest.mark.parametrize(
    ("low", "high"), [(1, 1), (0.045, 0.06), (2.0, 1300.0), (1e-3, 1e6), (100, 100_000)]
)
def test_ticks_are_round_and_few_and_around_the_values(low, high):
    ticks = chart._ticks(low, high)

    assert ticks[0] <= low * 1.001
    assert ticks[-1] >= high * 0.999
    assert 2 <= len(ticks) <= 11
    assert all(f"{tick:e}"[0] in "1235" for tick in ticks)


# -- the runner ------------------------------------------------------------------------------------


def test_a_script_gets_what_the_others_leave_it():
    script, later = run.Script("x", 100, 10), [run.Script("y", 100, 10)]

    assert run.choose(script, later, 200, 1.0, is_quick=False) == ("full", 190)
    assert run.choose(script, later, 105, 1.0, is_quick=False) == ("quick", 95)
    assert run.choose(script, later, 19, 1.0, is_quick=False)[0] == ""
    # Twice as slow as expected: what was enough is not.
    assert run.choose(script, later, 200, 2.0, is_quick=False) == ("quick", 180)
    assert run.choose(script, later, 200, 1.0, is_quick=True)[0] == "quick"


class Seen:
    """A display that remembers."""

    def __init__(self):
        self.steps, self.lines, self.outcomes = [], [], []

    def begin(self, script, seconds):
        pass

    def tick(self, step):
        self.steps.append(step)

    def said(self, line):
        self.lines.append(line)

    def end(self, outcome):
        self.outcomes.append(outcome)


def play(monkeypatch, tmp_path, source, may_take=60.0):
    """Run a script of these lines; give what became of it, and what was shown."""
    (tmp_path / "one.py").write_text(source)
    monkeypatch.setattr(run, "FOLDER", tmp_path)
    seen = Seen()
    return run.run(run.Script("one", 1, 1), "full", may_take, [], seen), seen


def test_steps_and_tables_are_shown_as_they_come(monkeypatch, tmp_path):
    source = "import sys\nprint('a table')\nprint('step one', file=sys.stderr)"

    outcome, seen = play(monkeypatch, tmp_path, source)

    assert outcome.is_good
    assert seen.lines == ["a table"]
    assert "step one" in seen.steps


def test_a_script_that_fails_has_its_last_words_shown(monkeypatch, tmp_path):
    outcome, seen = play(monkeypatch, tmp_path, "raise SystemExit('no such thing')")

    assert outcome.result == "failed (1)"
    assert "no such thing" in seen.lines


def test_a_script_whose_time_is_up_is_told_to_end_and_can_clean_up(monkeypatch, tmp_path):
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

    # Time enough to be there, and to know what to do when told.
    outcome, _seen = play(monkeypatch, tmp_path, source, may_take=5.0)

    assert outcome.result == "cut short"
    assert marker.exists()
    assert time.monotonic() - start < 30


def test_the_runner_knows_every_script():
    scripts = {
        path.stem for path in BENCH.glob("*.py") if re.search(r"recording\(\"", path.read_text())
    }

    assert {script.name for script in run.SCRIPTS} == scripts


def test_all_of_it_is_expected_to_take_less_than_twenty_minutes():
    assert sum(script.seconds for script in run.SCRIPTS) < 20 * 60 - run.GRACE_SECONDS
    assert sum(script.quick_seconds for script in run.SCRIPTS) < 5 * 60


# -- the scripts -----------------------------------------------------------------------------------


def call(name, *arguments):
    command = [sys.executable, str(BENCH / f"{name}.py"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)


@pytest.mark.parametrize("name", [script.name for script in run.SCRIPTS])
def test_every_script_says_what_it_does(name):
    done = call(name, "--help")

    assert done.returncode == 0, done.stderr
    assert "--quick" in done.stdout


@pytest.mark.parametrize(
    ("name", "part", "title"),
    [
        ("groups", "gather", "A rebalance against the number of members"),
        ("cluster", "create", "How soon a topic is everywhere"),
        ("client", "imports", "Imports of clients"),
    ],
)
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="they need Linux's /proc")
def test_what_scripts_find_with_brokers_can_be_drawn(tmp_path, name, part, title):
    """A part of each that is over in a moment stands for the others."""
    done = call(name, "--quick", "--only", part, "--results", str(tmp_path / "results"))
    assert done.returncode == 0, done.stderr

    page, missing = written(tmp_path)

    assert title not in missing
    assert f"`python bench/{name}.py --quick --only {part}`" in part_of(page, title)


def test_what_scripts_measure_can_be_drawn(tmp_path):
    """Two that are over in a moment are run for all the others."""
    results = tmp_path / "results"
    for name, *parts in (("codec",), ("log", "--only", "append", "growth", "load", "recovery")):
        done = call(name, "--quick", *parts, "--results", str(results))
        assert done.returncode == 0, done.stderr

    page, missing = written(tmp_path)

    assert {"Messages", "Recovery", "Cost against the length of a log"}.isdisjoint(missing)
    assert "`python bench/log.py --quick --only append growth load recovery`" in page
    (record,) = [json.loads(path.read_text()) for path in results.glob("codec-*.json")]
    assert record["quick"]
    assert {"date", "commit", "cpu", "load", "seconds"} <= set(record)
    assert record["versions"]["python"].startswith("3.")


@pytest.mark.parametrize("ending", ["raise OSError('no room')", "os.kill(os.getpid(), 15)"])
def test_what_was_measured_before_a_script_broke_off_is_kept(tmp_path, ending):
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
