"""How many CPUs this process may really use: a container's quota counts, not the host's cores."""

from __future__ import annotations

import os
from pathlib import Path


def usable_cpus(cgroup: Path = Path("/sys/fs/cgroup")) -> int:
    """CPUs that the affinity mask and the control group both allow; at least 1, and a part of one is rounded up."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(allowed, _quota(cgroup) or allowed))


def _quota(cgroup: Path) -> int | None:
    """Whole CPUs of the control group's quota, rounded up; None without one."""
    v2, v1 = cgroup / "cpu.max", cgroup / "cpu"
    try:
        if v2.is_file():
            quota, period = v2.read_text().split()
        else:
            quota, period = ((v1 / f"cpu.cfs_{name}_us").read_text().strip() for name in ("quota", "period"))
        return -(-int(quota) // int(period)) if int(quota) > 0 else None
    except (OSError, ValueError):  # no control group, or `max`: no limit
        return None
