"""Snippets of the docs that require Spark."""

from harness.snippets import DEFAULT_ADDRESS, PAGES, blocks_of

BLOCKS = [block for page in PAGES for block in blocks_of(page) if block.needs == "spark"]


def test_spark_snippets_run(spark, bootstrap, producer, capsys):
    producer.send("greetings", b"hello")

    for block in BLOCKS:
        exec(compile(block.text.replace(DEFAULT_ADDRESS, bootstrap), str(block), "exec"), {})

    assert "|     0|hello|" in capsys.readouterr().out
