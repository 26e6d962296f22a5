"""The checks that read the code and don't run it: ruff, types, import layers. One line each: `ok NAME` or `FAILED NAME`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from devtools.environments import ROOT

LIMIT_SECONDS = 240


def checks() -> dict[str, list[str]]:
    """Return the command of each check, run by the tools beside this interpreter."""
    folder = Path(sys.executable).parent
    return {
        "ruff check": [str(folder / "ruff"), "check", "."],
        "mypy": [sys.executable, "-m", "mypy"],
        "lint-imports": [str(folder / "lint-imports"), "--no-cache"],
    }


def main() -> int:
    """Run every check, also after one that failed."""
    failed = 0
    for name, command in checks().items():
        done = subprocess.run(
            command,
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=LIMIT_SECONDS,
        )
        failed += bool(done.returncode)
        print(f"{'FAILED' if done.returncode else 'ok'} {name}", flush=True)
        if done.returncode:
            print(done.stdout, flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
