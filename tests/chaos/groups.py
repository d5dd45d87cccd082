"""Row G: group members are killed, paused and started under load."""

from __future__ import annotations

from chaos.matrix import row
from chaos.stage import Run
from harness.group_members import BROKER_CONFIGS, GroupMembers, check_group, producing, settle

TOPIC = "jobs"
PARTITIONS = 6
CLIENTS = ("confluent", "aiokafka", "kafka-python")


@row("G", "group members killed and paused", "members", short=2, normal=20, full=200)
def come_and_go(run: Run) -> None:
    with run.stage(BROKER_CONFIGS) as stage:
        stage.create_topic(TOPIC, PARTITIONS)
        with (
            GroupMembers(stage.address, run.folder, "g", TOPIC, assignors=["range"]) as members,
            producing(stage.address, TOPIC, PARTITIONS) as load,
        ):
            members.start("a", "confluent")
            members.start("b", "aiokafka")
            members.wait_until_consuming()
            run.note_memory(stage)
            names = ["a", "b"]
            for cycle in run.cycles():
                name = names.pop(run.chance.randrange(len(names)))
                if run.chance.random() < 0.3:
                    with members.paused(name):
                        members.wait_for_commits_of_all(PARTITIONS, without=name)
                    names.append(name)
                else:
                    members.kill(name)
                    names.append(f"m{cycle}")
                    members.start(names[-1], run.chance.choice(CLIENTS))
                members.wait_until_assigned(PARTITIONS)
                members.wait_until_consuming()
            settle(members, load=load)
            members.stop()
            check_group(members, load)
            run.figures.acked = load.acked
        run.note_memory(stage)
        run.judge_memory()
