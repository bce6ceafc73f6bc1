"""Reads TOML: Python's tomllib, or tomli, which is the same for Python 3.10 (scripts/requirements.txt)."""

try:
    from tomllib import TOMLDecodeError, load, loads
except ImportError:
    try:
        from tomli import TOMLDecodeError, load, loads
    except ImportError:
        class TOMLDecodeError(ValueError):
            pass

        def load(_):
            raise TOMLDecodeError("reading TOML needs Python 3.11 or later, or tomli (make setup)")

        loads = load

__all__ = ["TOMLDecodeError", "load", "loads"]
