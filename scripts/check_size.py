#!/usr/bin/env python3
"""Warns of source files over 350 lines, fails over 500 (tests: 700); generated tables and data are free."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
WARN, FAIL, FAIL_TEST = 350, 500, 700


def main() -> int:
    failed = False
    for top in ("kernel", "launcher", "watchdog", "modules", "tests", "scripts"):
        for path in sorted((ROOT / top).rglob("*.py")):
            if path.name == "_contract.py" or "vendor" in path.parts:
                continue
            lines = len(path.read_text("utf-8").splitlines())
            limit = FAIL_TEST if top == "tests" else FAIL
            if lines > limit:
                print(f"{path.relative_to(ROOT)}: {lines} lines, over {limit}: split it", file=sys.stderr)
                failed = True
            elif lines > WARN and top != "tests":
                print(f"{path.relative_to(ROOT)}: {lines} lines, over {WARN}: consider a split", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
