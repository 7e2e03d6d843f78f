"""The offline steps that commands share: a dataset, a release, a filled feature store."""

from __future__ import annotations

import hashlib
from pathlib import Path

from configs.errors import DataError
from configs.settings import Settings
from deployments.console import Report
from features import movielens
from features.datasets import Dataset
from features.event_log import open_event_log
from features.files import write_atomically
from features.ingest import ingest
from features.ingest_spec import IngestReport, IngestSpec
from features.logged_interactions import Absorbed, absorb
from features.schema import USER_ID
from features.store import open_store
from features.stored_rows import ROW_FORMAT
from pool.repository import CHAMPION, open_releases

MOVIELENS = "ml-1m"


def ensure_dataset(settings: Settings, report: Report) -> None:
    """Have the settings' dataset on disk; MovieLens-1M is fetched when it is the one that is missing.

    Raises:
        DataError: another dataset is missing, or MovieLens cannot be had.
    """
    if (settings.dataset_folder / "dataset.json").is_file():
        return
    if settings.dataset != MOVIELENS:
        raise DataError(
            f"{settings.dataset_folder}: no such dataset; ingest it first: "
            f"recpool ingest interactions.csv --name {settings.dataset}"
        )
    folder = movielens.fetch(settings.home / "cache", report)
    save_dataset(settings, movielens.spec(folder, settings.dataset), report)


def save_dataset(settings: Settings, spec: IngestSpec, report: Report) -> IngestReport:
    """Ingest and make the result visible below the home, at once."""
    dataset, found = ingest(spec, report)
    report("writing the dataset", 0.0)
    dataset.save(settings.home / "datasets" / spec.name)
    report("writing the dataset", 1.0)
    return found


def ensure_release(settings: Settings, report: Report) -> str:
    """The champion's version; trains the quick recipe and promotes it when there is none."""
    return open_releases(settings).champion() or train(settings, "quick", report)


def train(settings: Settings, recipe: str, report: Report, promote: bool = True) -> str:
    """Build a release from the settings' dataset and, unless told otherwise, let it serve."""
    from serving.build import build_release  # torch takes seconds to import; few commands need it

    version = build_release(load_dataset(settings), settings, recipe, report)
    if promote:
        open_releases(settings).point(CHAMPION, version)
    return version


def load_dataset(settings: Settings) -> Dataset:
    """Raises DataError when there is none of that name."""
    return Dataset.load(settings.dataset_folder)


def absorb_events(settings: Settings) -> Absorbed:
    """Bring the settings' dataset up to date with the log of events.

    The feature store was loaded from what has changed then, but it has these events already, from when they came.

    Raises:
        DataError: there is no such dataset. Unavailable: the log cannot be read.
    """
    note = _note(settings)
    was_loaded = note.is_file() and note.read_text(encoding="utf-8") == _fingerprint(settings)
    log = open_event_log(settings)
    try:
        found = absorb(settings.dataset_folder, log)
    finally:
        log.close()
    if was_loaded:
        write_atomically(note, _fingerprint(settings).encode())
    return found


def ensure_store(settings: Settings, report: Report) -> None:
    """Fill the feature store from the dataset unless it holds that dataset already.

    A note beside the store says what was loaded last. It alone is not trusted: a server may have been
    emptied since, so one user is looked up as well.
    """
    stage, note = "loading the feature store", _note(settings)
    wanted = _fingerprint(settings)
    store = open_store(settings.store, settings.store_folder)
    try:
        dataset = load_dataset(settings)
        first = dataset.users.column(USER_ID)[:1].to_pylist()
        if note.is_file() and note.read_text(encoding="utf-8") == wanted and None not in store.fetch(first):
            return
        report(stage, 0.0)
        store.load(dataset, lambda fraction: report(stage, fraction))
        note.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(note, wanted.encode())
        report(stage, 1.0)
    finally:
        store.close()


def _note(settings: Settings) -> Path:
    """Beside the store: which dataset was loaded last."""
    return settings.home / "store" / f"{settings.dataset}.loaded"


def _fingerprint(settings: Settings) -> str:
    """Changes when the dataset is written again or the store is another one."""
    header = settings.dataset_folder / "dataset.json"
    store = f"{settings.store.kind} {ROW_FORMAT} {settings.store.redis_url} {settings.store.history_limit}"
    written = f"{header.stat().st_mtime_ns} {store}".encode() + header.read_bytes()
    return hashlib.sha256(written).hexdigest()
