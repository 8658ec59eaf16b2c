"""`kite new NAME` makes a module with its test, and the test is green at once.

Source: spec 30-clients §2.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

BOUND_S = 60.0


def test_a_new_module_comes_with_a_green_test(tmp_path: Path) -> None:
    name = "bild-größe"  # a module's name need be no Python name
    kite = [sys.executable, "-P", "-m", "kite_modules.cli.main", "new", name]
    env = {key: value for key, value in os.environ.items() if not key.startswith("KITE_")}
    made = subprocess.run(kite, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=BOUND_S, check=False)
    assert made.returncode == 0, made.stderr
    tests = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", name],
        cwd=tmp_path,
        env=env,
        capture_output=True,
        text=True,
        timeout=BOUND_S,
        check=False,
    )
    assert tests.returncode == 0, tests.stdout
    told = re.search(r"2 passed in ([0-9.]+)s", tests.stdout)
    assert told is not None, tests.stdout
    assert float(told[1]) < 10  # under a second where nothing else runs
