"""The service does not care from which folder it is started."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.system.running_service import free_port

ROOT = Path(__file__).resolve().parents[2]
WHERE_A_WORKER_FINDS_THE_PACKAGE = """
import sys
from service.local import local_ray, prepare
from service.settings import Settings

prepare()
with local_ray(Settings(port=int(sys.argv[1]))):
    import ray
    print(ray.get(ray.remote(lambda: __import__("model").__file__).remote()))
"""


@pytest.mark.slow
def test_a_stray_model_file_in_the_working_folder_hides_nothing(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text("raise SystemExit('the wrong model')\n", encoding="utf-8")
    command = [sys.executable, "-P", "-c", WHERE_A_WORKER_FINDS_THE_PACKAGE, str(free_port())]
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120)
    assert run.stdout.split() == [str(ROOT / "model" / "__init__.py")], run.stderr
