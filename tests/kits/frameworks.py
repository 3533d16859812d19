"""A Python that has the frameworks which cannot be installed beside the others (`make frameworks`)."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
OFFLINE = {
    "DEEPEVAL_TELEMETRY_OPT_OUT": "1",
    "DEEPEVAL_UPDATE_WARNING_OPT_IN": "0",
    "FLWR_TELEMETRY_ENABLED": "0",
    "http_proxy": "http://127.0.0.1:9",  # what leaves this machine fails at once
    "https_proxy": "http://127.0.0.1:9",
    "no_proxy": "127.0.0.1,localhost",
}


def python_with(module: str) -> str:
    """The path of a Python with a module; skips the test if there is none."""
    if importlib.util.find_spec(module) is not None:
        return sys.executable
    found = os.environ.get("FITROUTER_FRAMEWORKS") or str(ROOT / ".venv-frameworks" / "bin" / "python")
    if not Path(found).exists():
        pytest.skip(f"{module} is not installed: make frameworks")
    return found


def environment(folder: Path) -> dict[str, str]:
    """Variables of a process with this checkout's sources, which reports nothing and reaches no other machine."""
    path = os.pathsep.join(str(ROOT / name) for name in ("router", "evaluators", "integrations", "dashboards"))
    return {"PATH": os.environ["PATH"], "HOME": str(folder), "PYTHONPATH": path, "OMP_NUM_THREADS": "1", **OFFLINE}


def ran(module: str, code: str, folder: Path) -> str:
    """Standard output of a program that needs a module, run in a folder by a process of its own."""
    done = subprocess.run(
        [python_with(module), "-c", code],
        cwd=folder,
        env=environment(folder),
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout
