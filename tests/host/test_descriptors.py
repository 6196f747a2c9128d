"""A process of a job raises its own limit of open files, as far as it may."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (int(sys.argv[1]), int(sys.argv[2])))
from engine.host.descriptors import raise_descriptor_limit
print(raise_descriptor_limit(), resource.getrlimit(resource.RLIMIT_NOFILE)[0])
"""


@pytest.mark.parametrize(("soft", "hard", "raised"), [(256, 5000, 5000), (300, 300, 300)])
def test_the_limit_is_raised_as_far_as_allowed(soft: int, hard: int, raised: int) -> None:
    said = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(soft), str(hard)], capture_output=True, text=True, check=True
    ).stdout
    assert said.split() == [str(raised), str(raised)]
