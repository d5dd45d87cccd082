"""The command line: one module per noun, thin shells over the SDK and the broker.

A command parses its options, calls the SDK and prints. Modules that are slow to import are imported
when a command runs, so that `--help` and shell completion stay fast.
"""
