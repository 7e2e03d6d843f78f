"""A text file of any encoding as a stream of UTF-8, with undecodable bytes marked in place.

The CSV parser gives up on a whole file for one bad byte in a row it cannot split. Marking the byte
instead costs only the row it stands in.
"""

from __future__ import annotations

import codecs
import io
from pathlib import Path

import pyarrow as pa

UNDECODABLE = "\uffff"
"""Stands for bytes that are not in the encoding; Unicode reserves it as no character of any text."""
MARKING = "recpool-mark"
BYTES_PER_BYTE = 4
"""UTF-8 that one byte of input can grow to, at most."""


def _mark(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeDecodeError):
        raise error
    return UNDECODABLE, error.end


codecs.register_error(MARKING, _mark)


class TextSource(io.RawIOBase):
    """Readable binary stream of UTF-8; a file named ``.gz``, ``.bz2``, ``.zst`` or ``.lz4`` is unpacked."""

    def __init__(self, path: Path, encoding: str):
        super().__init__()
        self._file = path.open("rb")
        packed = path.suffix in (".gz", ".bz2", ".zst", ".lz4")
        self._raw = pa.input_stream(str(path), compression="detect") if packed else self._file
        self._packed = packed
        self._decoder = codecs.getincrementaldecoder(encoding)(MARKING)
        self.quotes = 0

    @property
    def position(self) -> int:
        """Bytes of the file read so far; 0 while it is unpacked, where this is not known."""
        return 0 if self._packed else self._file.tell()

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        """Up to ``size`` bytes; nothing only at the end."""
        wanted = max(size // BYTES_PER_BYTE - BYTES_PER_BYTE, 1) if size >= 0 else 1 << 20
        while True:
            block = self._raw.read(wanted)
            text = self._decoder.decode(block, final=not block)
            if text or not block:
                self.quotes += text.count('"')
                return text.encode()

    def close(self) -> None:
        if not self.closed:
            self._raw.close()
            self._file.close()
        super().close()
