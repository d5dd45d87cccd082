"""Settings that all tests share.

`pytest --hypothesis-profile=deep` looks longer, and elsewhere each time.
"""

import signal

from hypothesis import HealthCheck, settings

pytest_plugins = ("ottla.broker.pytest_plugin", "pytester")

settings.register_profile(
    "fast",
    max_examples=10,
    derandomize=True,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("deep", max_examples=300, deadline=None)
settings.load_profile("fast")

# A shell that runs the tests in the background has this ignored, in the processes of tests too.
signal.signal(signal.SIGINT, signal.default_int_handler)
