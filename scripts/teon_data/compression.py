"""Compressed text files: .gz, .zst, .bz2 and .xz, of several members or frames, with any window. A file that ends early
raises EOFError, damage OSError, zlib.error or lzma.LZMAError."""

import bz2
import gzip
import io
import lzma
import zlib

from .files import first_line, need

COMPRESSIONS = {".gz": "gzip", ".gzip": "gzip", ".zst": "zstd", ".zstd": "zstd", ".bz2": "bzip2", ".xz": "xz"}
DAMAGES = (OSError, EOFError, zlib.error, lzma.LZMAError)
READ_BYTES = 1 << 20    # buffer of every file
FRAME_BYTES = 1 << 14   # compressed bytes at a time: all that they expand to is in memory
MAX_WINDOW = 1 << 31    # `zstd --long=31`; the library's own limit is 2^27


class ZstdStream(io.RawIOBase):
    """Decompresses a .zst file. The library's own stream takes a file that ends early for a whole one."""

    def __init__(self, raw):
        self.library = need("zstandard", "a .zst file")
        self.decompressor = self.library.ZstdDecompressor(max_window_size=MAX_WINDOW)
        self.raw = raw
        self.frame = None
        self.text = memoryview(b"")

    def readable(self):
        return True

    def readinto(self, buffer):
        try:
            while not self.text:
                begins = self.frame is None or self.frame.eof
                rest = self.frame.unused_data if self.frame and begins else b""
                data = rest or self.raw.read(FRAME_BYTES)
                if not data and begins:
                    return 0
                if not data:
                    raise EOFError("the file ends within a frame")
                if begins:
                    self.frame = self.decompressor.decompressobj()
                self.text = memoryview(self.frame.decompress(data))
        except self.library.ZstdError as error:
            raise OSError(first_line(error)) from error
        size = min(len(buffer), len(self.text))
        buffer[:size] = self.text[:size]
        self.text = self.text[size:]
        return size


def opened(raw, compression):
    """Returns the text of an open file as a stream."""
    if not compression:
        return raw
    stream = {"gzip": lambda: gzip.GzipFile(fileobj=raw), "zstd": lambda: ZstdStream(raw),
              "bzip2": lambda: bz2.BZ2File(raw), "xz": lambda: lzma.LZMAFile(raw)}[compression]()
    return io.BufferedReader(stream, READ_BYTES)
