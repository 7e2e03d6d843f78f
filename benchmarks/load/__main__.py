"""The child of `benchmarks.load.start`: reads a load from its standard input, writes what came of it."""

from __future__ import annotations

from benchmarks.load.process import serve_parent

serve_parent()
