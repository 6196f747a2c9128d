"""Every run of the tests is the same run: hypothesis takes its examples from the test itself, not from chance."""

from hypothesis import HealthCheck, settings

settings.register_profile(
    "weir", derandomize=True, deadline=None, max_examples=40, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("weir")

pytest_plugins = ["tests.no_java", "tests.servers.minio"]
