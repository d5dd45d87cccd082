# Needs Python 3.11 or newer, pip and make; everything else goes into .venv.
# Another interpreter: make PYTHON=python3.13

PYTHON ?= python3
export PYTHON
# pytest caches modules with rewritten assertions as bytecode; collection takes 3 s instead of 9 s.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help broker check coverage demo test lint format bench chaos nemesis diff model sim soak docs site clean venv core-venv spark-demo spark-kills
.DEFAULT_GOAL := help

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' Makefile

broker: core-venv ## run a broker on localhost:9092 and its console on :8080, data in ottla-data/; Ctrl-C stops both
	.venv/bin/python -m ottla broker start --console

spark-demo: venv ## watch simulated devices with Spark for half a minute; brings its own broker
	.venv/bin/python examples/spark/demo.py

demo: venv ## watch three brokers, a producer, a group and a Spark job at work for a minute
	.venv/bin/python examples/demo

check: lint ## run the checks and the tests that start no process; under 90 seconds
	TEST_NO_DAEMONS=1 .venv/bin/python -m pytest --numprocesses 2 --hypothesis-profile=check \
		-m "not process and not spark and not sleeps and not exhaustive" $(ARGS)

test: lint ## run every check and every test
	.venv/bin/python -m pytest --numprocesses 2 --dist loadgroup $(ARGS)

coverage: venv ## run every test, and print the lines and branches that none ran; takes twice as long
	.venv/bin/python -m pytest --numprocesses 2 --dist loadgroup --cov --cov-report term:skip-covered $(ARGS)

lint: venv ## run the checks alone: ruff, mypy, import-linter
	.ci/lint

format: venv ## format the code
	.venv/bin/python -m ruff check --fix .
	.venv/bin/python -m ruff format .

bench: venv ## run every benchmark (up to 20 minutes); writes docs/benchmarks.md
	.venv/bin/python bench/run.py $(ARGS)

chaos: venv ## inject faults under load; prints a table. CHAOS="--rows 1,7-9 --seed 5 --cycles 100"
	PYTHONPATH=tests .venv/bin/python -m chaos run $(CHAOS)

nemesis: venv ## inject random faults into a replicated cluster. NEMESIS="--minutes 30 --seed 5"
	PYTHONPATH=tests .venv/bin/python -m chaos nemesis $(NEMESIS)

spark-kills: venv ## kill an exactly-once Spark query and its brokers at 50 random points. KILLS="--kills 5 --seed 5"
	PYTHONPATH=tests .venv/bin/python -m spark.kill_points $(KILLS)

sim: venv ## simulate clusters with faults on virtual clocks. SIM="--minutes 10", or one seed: SIM="--seed 5"
	PYTHONPATH=tests .venv/bin/python -m simulation $(SIM)

model: venv ## walk the model of the replication protocol at random. MODEL="--seed 5 --minutes 10"
	PYTHONPATH=tests .venv/bin/python -m replication $(MODEL)

diff: venv ## compare a thousand sequences of requests with Apache Kafka (jars: TEST_KAFKA_LIBS). DIFF="--seed 5"
	PYTHONPATH=tests .venv/bin/python -m differential $(DIFF)

soak: venv ## an hour of load with faults; fails if memory or descriptors grow. SOAK="--minutes 5"
	PYTHONPATH=tests .venv/bin/python -m chaos soak $(SOAK)

site: venv ## build the documentation site in build/site
	PIP_CONSTRAINT=$$PWD/requirements.lock PIP_BUILD_CONSTRAINT=$$PWD/requirements.lock \
		$(PYTHON) -m pip --python .venv/bin/python install --quiet --disable-pip-version-check --editable ".[docs]"
	NO_MKDOCS_2_WARNING=1 .venv/bin/python -m mkdocs build --strict

docs: venv ## regenerate the generated parts of docs/
	.venv/bin/python docs/generate.py

clean: ## remove everything that was built
	rm -rf .venv .coverage .coverage.* .hypothesis .mypy_cache .pytest_cache .ruff_cache build dist *.egg-info protocol/*.so protocol/*.c

core-venv:
	@.ci/venv core

venv:
	@.ci/venv dev
