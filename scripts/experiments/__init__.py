"""Grids of training runs (sweep.py), their comparison (compare.py) and the tables of the paper (reproduce.py)."""

from common import toml
from common.run_folder import BadRun, read_text


class Fault(Exception):
    """A wrong argument or setting; the message is one sentence."""


EXIT_STATUS = {Fault: 2, BadRun: 1}


def read_toml(path):
    try:
        return toml.loads(read_text(path))
    except BadRun as fault:
        raise Fault(str(fault)) from None
    except (ValueError, RecursionError) as error:  # TOMLDecodeError, nested too deep
        raise Fault(f"{path}: {error}") from None
