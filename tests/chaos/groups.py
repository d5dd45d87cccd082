"""Row G: members of groups that are killed, frozen and started, while records come."""

from __future__ import annotations

from chaos.matrix import row
from chaos.stage import Run
from groups.company import Company, check, producing, settle

TOPIC = "jobs"
PARTITIONS = 6
CLIENTS = ("confluent", "aiokafka", "kafka-python")
#: What lets members be impatient.
SETTINGS = {"group.min.session.timeout.ms": "100", "group.initial.rebalance.delay.ms": "100"}


@row("G", "group members killed and frozen", "members", short=2, normal=20, full=200)
def come_and_go(run: Run) -> None:
    with run.stage(SETTINGS) as stage:
        stage.create_topic(TOPIC, PARTITIONS)
        with (
            Company(stage.address, run.folder, "g", TOPIC, assignors=["range"]) as company,
            producing(stage.address, TOPIC, PARTITIONS) as producer,
        ):
            company.start("a", "confluent")
            company.start("b", "aiokafka")
            company.wait_until_reading()
            run.note_memory(stage)
            names = ["a", "b"]
            for cycle in run.cycles():
                name = names.pop(run.chance.randrange(len(names)))
                if run.chance.random() < 0.3:
                    with company.frozen(name):
                        company.wait_until_commits_of_all(PARTITIONS, but=name)
                    names.append(name)
                else:
                    company.kill(name)
                    names.append(f"m{cycle}")
                    company.start(names[-1], run.chance.choice(CLIENTS))
                company.wait_until_shared(PARTITIONS)
                company.wait_until_reading()
            settle(company, producer)
            company.stop()
            check(company, producer)
            run.figures.acked = len(producer.acked)
        run.note_memory(stage)
        run.judge_memory()
