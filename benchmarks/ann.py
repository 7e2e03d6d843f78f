"""What the vector index gives and costs: containment of the exact top, time a query, bytes.

Vectors imitate learnt item embeddings: a mixture of Gaussian clusters with Zipf sizes whose centres
and whose spread inside a cluster have variances falling as k ** -1.4 over a random basis (the slope of the
item vectors that the two-tower learns on MovieLens-1M), with
as much variance inside clusters as between them, so that clusters overlap; then scaled to length one.
Queries are fresh draws of the same process, none of them a base vector.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import faiss
import numpy as np

from benchmarks.report import Floor, is_quick, print_report, print_table
from recall.index import AnnIndex
from recall.index_spec import IndexSpec

DIM = 64
EXACT_TOP, RETRIEVED = 100, 500
ITEMS, QUICK_ITEMS = 1_000_000, 100_000
QUERIES, QUICK_QUERIES = 500, 300
REPEATS = 5
QUANTISERS = ("PQ16x4fs", "PQ32x4fs", "PQ64x4fs")
LISTS_PER_VISIT = (128, 64, 32, 20, 16, 8)
"""nprobe is nlist divided by each of these."""


@dataclass(frozen=True)
class Arm:
    """One point of the sweep: containment in [0, 1], time a query, bytes as a share of the flat vectors'.

    `query_us` is wall time; `query_cpu_us` is this process's CPU time, equal to it on an idle core.
    """

    factory: str
    nprobe: int
    containment: float
    query_us: float
    query_cpu_us: float
    bytes_share: float


def sample_vectors(sizes: tuple[int, ...], clusters: int, seed: int = 0) -> list[np.ndarray]:
    """Independent draws [n, DIM] float32 of unit length from one mixture, one for each of sizes."""
    rng = np.random.default_rng(seed)
    spectrum = np.arange(1, DIM + 1) ** -0.7
    basis = np.linalg.qr(rng.normal(size=(DIM, DIM)))[0]
    centres = rng.normal(size=(clusters, DIM)) * spectrum
    weights = 1.0 / np.arange(1, clusters + 1) ** 0.8
    draws = []
    for size in sizes:
        members = rng.choice(clusters, size, p=weights / weights.sum())
        points = (centres[members] + rng.normal(size=(size, DIM)) * spectrum) @ basis
        draws.append((points / np.linalg.norm(points, axis=1, keepdims=True)).astype(np.float32))
    return draws


def exact_top(base: np.ndarray, queries: np.ndarray, k: int) -> np.ndarray:
    """Positions [Q, k] of the k best inner products, by a full scan."""
    flat = faiss.IndexFlatIP(DIM)
    flat.add(base)  # type: ignore[call-arg]
    return flat.search(queries, k)[1]  # type: ignore[call-arg]


def containment(retrieved: np.ndarray, exact: np.ndarray) -> float:
    """Share of the exact top [Q, k] among the retrieved [Q, n]."""
    return float(np.mean([np.isin(want, got).mean() for got, want in zip(retrieved, exact, strict=True)]))


def query_us(index: AnnIndex, queries: np.ndarray, nprobe: int) -> tuple[float, float]:
    """Medians over repeats of wall and CPU microseconds a query, queries sent one at a time as in serving."""
    took = []
    for _ in range(REPEATS):
        start, start_cpu = time.perf_counter(), time.process_time()
        for query in queries:
            index.search(query[None], RETRIEVED, nprobe=nprobe)
        took.append((time.perf_counter() - start, time.process_time() - start_cpu))
    wall, cpu = np.median(took, axis=0) / len(queries) * 1e6
    return float(wall), float(cpu)


def sweep(quantiser: str, padded: np.ndarray, queries: np.ndarray, exact: np.ndarray) -> list[Arm]:
    """All nprobe settings of one quantiser at the automatic nlist; padded [I + 2, DIM] has two unused rows."""
    nlist = round(2 * (len(padded) - 2) ** 0.5)
    spec = IndexSpec(f"IVF{nlist},{quantiser}")
    start = time.perf_counter()
    index = AnnIndex.build(padded, spec)
    share = index.size_bytes / (4.0 * DIM * len(index))
    print(f"built {spec.factory} in {time.perf_counter() - start:.0f} s", flush=True)
    arms = []
    for nprobe in sorted({max(1, nlist // part) for part in LISTS_PER_VISIT}):
        found = index.search(queries, RETRIEVED, nprobe=nprobe).items
        times = query_us(index, queries[:200], nprobe)
        arms.append(Arm(spec.factory, nprobe, containment(found, exact + 2), *times, share))
    return arms


def main() -> None:
    faiss.omp_set_num_threads(1)
    items, asked = (QUICK_ITEMS, QUICK_QUERIES) if is_quick() else (ITEMS, QUERIES)
    base, queries = sample_vectors((items, asked), clusters=items // 250)
    exact = exact_top(base, queries, EXACT_TOP)
    padded = np.concatenate([np.zeros((2, DIM), np.float32), base])
    arms = [arm for quantiser in QUANTISERS for arm in sweep(quantiser, padded, queries, exact)]
    print_table(
        ("factory", "nprobe", f"top {EXACT_TOP} in {RETRIEVED}", "us/query", "cpu us/query", "bytes share"),
        [(arm.factory, arm.nprobe, arm.containment, arm.query_us, arm.query_cpu_us, arm.bytes_share) for arm in arms],
    )
    automatic = IndexSpec.choose(items, DIM)
    chosen = next((arm for arm in arms if (arm.factory, arm.nprobe) == (automatic.factory, automatic.nprobe)), None)
    assert chosen is not None, f"the automatic choice {automatic} is not in the sweep"
    print(f"\nautomatic choice for {items} items: {chosen.factory}, nprobe {chosen.nprobe}")
    print_report(
        "ann",
        {"items": items, "dim": DIM, "queries": asked, "chosen": vars(chosen), "sweep": [vars(arm) for arm in arms]},
        [
            Floor("containment", chosen.containment, 0.95),
            Floor("query_ms", chosen.query_us / 1e3, 1.0, "lower"),
            Floor("bytes_share", chosen.bytes_share, 0.25, "lower"),
        ],
    )


if __name__ == "__main__":
    main()
