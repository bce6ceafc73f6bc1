"""Reads the experiments: experiments/*.toml as tables of rows, scales and cells.

A row is a method; a cell is one training run of it: a model, a learning rate and a seed. A cell may be in several
tables; its folder is named after its flags, so it runs once.
"""
import dataclasses
import functools
import glob
import os
import re
import subprocess

from experiments import Fault, read_toml
from experiments.cells import as_flag_value, folder_of

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
# The engine's defaults, which are omitted in a folder's name.
DEFAULTS = {"weight-decay": 0.1, "schedule": "cosine", "warmup-ratio": 0.1, "teon-k": 2, "teon-mode": 1,
            "teon-roles": "q,k,v", "ns-steps": 5, "ortho": "polar-express", "teon-rms-match": False,
            "teon-normalize-slices": False}
TUNING_SEED = 1
VOCABULARIES = {"bytes": 257, "gpt2": 50257, "llama2": 32000}


@dataclasses.dataclass(frozen=True, eq=False)
class Model:
    name: str
    flags: dict
    rates: dict                 # by optimizer: the paper's rate, or the rate at which the search begins
    adamw_beside: float = None  # the rate of AdamW's parameters with Muon and Teon; None: AdamW's own best rate


@dataclasses.dataclass(frozen=True)
class Scale:
    name: str
    about: str
    seeds: int
    headline_seeds: int
    grid: list
    vocabulary: dict
    source: list
    eval_every: int
    eval_tokens: int
    diagnose_every: int
    models: dict
    max_tokens: int = 0
    extend_grid: int = 0  # at most this many rates are added while the grid's best rate is its lowest or highest

    def vocabulary_size(self, program):
        name = self.vocabulary[program]
        return int(name[6:]) if name.startswith("train:") else VOCABULARIES[name]


@dataclasses.dataclass(frozen=True)
class Row:
    name: str
    flags: dict
    against: str = ""
    paper: dict = dataclasses.field(default_factory=dict)           # perplexity by model
    paper_variance: dict = dataclasses.field(default_factory=dict)  # of five runs, by model
    model_flags: dict = dataclasses.field(default_factory=dict)     # flags of one model only


@dataclasses.dataclass(frozen=True)
class Table:
    id: str
    order: int
    title: str
    place: str
    claim: str
    program: str
    models: list
    flags: dict
    rows: list
    headline: bool = False
    variance: bool = False

    def row(self, name):
        return next(r for r in self.rows if r.name == name)

    def seeds(self, scale):
        return scale.headline_seeds if self.headline else scale.seeds

    def models_at(self, scale):
        """The table's models that exist at this scale."""
        return [scale.models[m] for m in self.models if m in scale.models]

    def method(self, row, model, adamw_rate):
        """Returns a row's Method, without the flags that its optimizer lacks and without the engine's defaults."""
        flags = self.flags | row.flags | row.model_flags.get(model.name, {})
        other = {"adamw": ("teon-", "ortho", "ns-steps"), "teon": ()}.get(flags["optimizer"], ("teon-",))
        flags = {k: v for k, v in sorted(flags.items()) if not k.startswith(other) and DEFAULTS.get(k) != v}
        return Method(self.program, model, flags, adamw_rate)


@dataclasses.dataclass(frozen=True)
class Method:
    """What runs for a model at several rates."""
    program: str
    model: Model
    flags: dict
    adamw_rate: float = None  # beside Muon and Teon; None: not known yet

    @property
    def optimizer(self):
        return self.flags["optimizer"]

    def cell(self, rate, seed):
        beside = {} if self.optimizer == "adamw" else {"adamw-lr": self.adamw_rate}
        return Cell(self.program, self.model, self.flags | {"lr": rate} | beside | {"seed": seed})


@dataclasses.dataclass(frozen=True)
class Cell:
    """One training run, with the flags of its method, its rates and its seed."""
    program: str
    model: Model
    flags: dict

    @property
    def name(self):
        """The run's folder below that of the scale."""
        return folder_of(self.model.name, {k: as_flag_value(v) for k, v in self.flags.items()})


def build(kind, where, values):
    """Makes a dataclass from a TOML table. Raises a Fault for an unknown or missing name."""
    fields = {f.name: f for f in dataclasses.fields(kind)}
    unknown = sorted(set(values) - set(fields))
    missing = sorted(name for name, f in fields.items() if name not in values and f.default is f.default_factory)
    if unknown or missing:
        raise Fault(f"{where}: " + "; ".join(filter(None, [unknown and f"{', '.join(unknown)}: not known",
                                                           missing and f"{', '.join(missing)}: missing"])))
    return kind(**values)


def load_scales(folder):
    path, scales = os.path.join(folder, "scales.toml"), {}
    for name, values in read_toml(path).items():
        models = {model: Model(model, flags, flags.pop("rates"), flags.pop("adamw_beside", None))
                  for model, flags in values.pop("models").items()}
        scales[name] = build(Scale, f"{path}: {name}", {"name": name, "models": models} | values)
    return scales


def load_tables(folder):
    tables = []
    for path in glob.glob(os.path.join(glob.escape(folder), "*.toml")):
        name = os.path.splitext(os.path.basename(path))[0]
        if name == "scales":
            continue
        values = read_toml(path)
        rows = [build(Row, f"{path}: {row.get('name', 'a row')}", row) for row in values.pop("rows", [])]
        table = build(Table, path, values | {"id": name, "rows": rows})
        names = [r.name for r in rows]
        bad = [r.name for r in rows if r.against and r.against not in names]
        if bad or len(set(names)) < len(names):
            raise Fault(f"{path}: rows with the same name, or compared with a row that does not exist: "
                        f"{', '.join(bad or names)}")
        tables.append(table)
    return sorted(tables, key=lambda t: t.order)


BYTES = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}


@functools.cache
def plan_of(program, model, vocabulary_size):
    """Returns (parameters, bytes on one device, bytes of weights, masters and optimizer state), by --plan-only."""
    flags = [word for k, v in model.flags.items() for word in (f"--{k}", f"{v:g}" if isinstance(v, float) else str(v))]
    words = [os.path.join(ROOT, program), *flags, "--vocab-size", str(vocabulary_size), "--optimizer", "muon",
             "--dtype", "bf16", "--plan-only", "--memory", "80Gi"]
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode:
        raise Fault(f"{' '.join(words)}: {done.stderr.strip() or 'failed'}")

    def size(label):
        number, unit = re.search(rf"{label}\s+([\d.]+) (\w+)", done.stdout).groups()
        return float(number) * BYTES[unit]

    parameters = float(re.search(r"^parameters\s+(\d+)", done.stdout, re.MULTILINE)[1])
    return parameters, size(r"\n\s+total"), 8 * parameters + size("optimizer state")
