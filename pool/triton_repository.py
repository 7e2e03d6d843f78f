"""A model repository for a Triton server that computes stages of the funnel.

    python -m pool.triton_repository <folder of a dataset's releases> <folder to write> [version ...]

Triton wants all versions of a model in one folder, and a release has its models in its own: so release 7 becomes
version 7 of each. Whoever asks for a model of a release then gets that of this very release, or none. Without
versions the champion is written. A server with ONNX Runtime's backend runs it as it is.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from features.files import write_atomically
from pool.model_config import CONFIG_FILE, MODEL_FILE, config_text
from pool.repository import ReleaseRepository

ALL_VERSIONS = "version_policy { all { } }\n"


def write_repository(releases: ReleaseRepository, target: Path, versions: Sequence[str] = ()) -> list[str]:
    """Add versions to a repository, beside those that it has; returns what was asked for.

    Args:
        versions: absent: the champion.
    Raises:
        NotFound: no such version. ArtifactError: one differs from its manifest.
    """
    champion = releases.champion()
    wanted = list(versions) or [champion] if champion else list(versions)
    for version in wanted:
        releases.verify(version)
        for file in sorted((releases.path(version) / "models").glob(f"*/*/{MODEL_FILE}")):
            _write_model(file, target / file.parent.parent.name, version)
    return wanted


def _write_model(file: Path, folder: Path, version: str) -> None:
    place = folder / version / MODEL_FILE
    place.parent.mkdir(parents=True, exist_ok=True)
    scratch = place.with_suffix(".new")
    shutil.copyfile(file, scratch)
    scratch.replace(place)
    text = config_text(folder.name, file)
    write_atomically(folder / CONFIG_FILE, (text + ALL_VERSIONS).encode())


def main(arguments: Sequence[str]) -> None:
    """See the module."""
    folder, target, *versions = arguments
    written = write_repository(ReleaseRepository(Path(folder)), Path(target), versions)
    print(f"{target}: versions {', '.join(written) or 'none, as no release has been promoted'}")


if __name__ == "__main__":
    main(sys.argv[1:])
