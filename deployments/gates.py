"""Where the gates of a home's devices lie, and that nothing of them stays behind."""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
from pathlib import Path

from configs.errors import ConfigError
from configs.settings import Settings

SHARED_MEMORY = Path("/dev/shm")


def gate_folder(settings: Settings) -> Path:
    """Where the gates of this home lie: as the settings say, else in memory, else in the home.

    On a disk, the kernel may make a writer of a word wait while it writes the page back; in memory it does not.

    Raises:
        ConfigError: the folder in memory is somebody else's.
    """
    if settings.pool.runtime.gate_folder is not None:
        return settings.pool.runtime.gate_folder.absolute()
    if not SHARED_MEMORY.is_dir() or not os.access(SHARED_MEMORY, os.W_OK):
        return settings.home.absolute() / "run" / "gate"
    folder = _in_memory(settings.home)
    folder.mkdir(mode=0o700, exist_ok=True)
    if not _is_ours(folder):
        raise ConfigError(
            f"pool.runtime.gate_folder: {folder} is not a folder of this user alone; remove it, or name another"
        )
    return folder


def remove_gates(home: Path) -> None:
    """Remove the gates that a pool of this home has made by itself, once nobody computes behind them.

    Those in a folder that the settings name stay: that folder may be another pool's as well.
    """
    shutil.rmtree(home.absolute() / "run" / "gate", ignore_errors=True)
    folder = _in_memory(home)
    if folder.exists() and _is_ours(folder):
        shutil.rmtree(folder, ignore_errors=True)


def _in_memory(home: Path) -> Path:
    return SHARED_MEMORY / f"recpool-{hashlib.sha256(str(home.absolute()).encode()).hexdigest()[:12]}"


def _is_ours(folder: Path) -> bool:
    found = folder.lstat()  # of a link itself, which leads wherever its maker likes
    others_write = stat.S_IMODE(found.st_mode) & (stat.S_IWGRP | stat.S_IWOTH)
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not others_write
