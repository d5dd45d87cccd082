"""Row G: group members are killed, paused and started under load."""

from __future__ import annotations

from chaos.matrix import row
from chaos.testbed import Run
from harness.group_members import BROKER_CONFIGS, GroupMembers, check_group, producing, settle

TOPIC = "jobs"
PARTITIONS = 6
CLIENTS = ("confluent", "aiokafka", "kafka-python")


@row("G", "group members killed and paused", "members", short=1, normal=20, full=200)
def come_and_go(run: Run) -> None:
    with run.testbed(BROKER_CONFIGS) as testbed:
        testbed.create_topic(TOPIC, PARTITIONS)
        with (
            GroupMembers(testbed.address, run.folder, "g", TOPIC, assignors=["range"]) as members,
            producing(testbed.address, TOPIC, PARTITIONS) as load,
        ):
            members.start("a", "confluent")
            members.start("b", "aiokafka")
            members.wait_until_consuming()
            run.measure_memory(testbed)
            names = ["a", "b"]
            for cycle in run.cycles():
                name = names.pop(run.random.randrange(len(names)))
                if run.random.random() < 0.3:
                    with members.paused(name):
                        members.wait_for_commits_of_all(PARTITIONS, without=name)
                    names.append(name)
                else:
                    members.kill(name)
                    names.append(f"m{cycle}")
                    members.start(names[-1], run.random.choice(CLIENTS))
                members.wait_until_assigned(PARTITIONS)
                members.wait_until_consuming()
            settle(members, load=load)
            members.stop()
            check_group(members, load)
            run.figures.acked = load.acked
        run.measure_memory(testbed)
        run.verify_memory()
