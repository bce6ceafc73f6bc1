"""Reads the experiments: experiments/*.toml as tables of rows, scales and cells.

A row is a method; a cell is one training run of it: a model, a learning rate and a seed. A cell may be in several
tables; its folder is named after its flags, so it runs once.
"""
import dataclasses
import glob
import os

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
    rates: dict          # by optimizer: the paper's rate, or the rate at which the search begins
    adamw_beside: float  # the rate of AdamW's parameters with Muon and Teon; None: AdamW's own best rate


@dataclasses.dataclass(frozen=True)
class Scale:
    name: str
    about: str
    seeds: int
    headline_seeds: int
    grid: list
    vocabulary: dict
    source: list
    max_tokens: int
    eval_every: int
    eval_tokens: int
    diagnose_every: int
    models: dict
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


@dataclasses.dataclass(frozen=True)
class Cell:
    program: str
    model: Model
    flags: tuple  # ((flag, value), ...), sorted, without the engine's defaults
    rate: float
    adamw_rate: float  # None: as `rate`
    seed: int

    def folder(self, out):
        named = {k: as_flag_value(v) for k, v in self.flags}
        rates = {"lr": f"{self.rate:.4g}"} | ({"adamw-lr": f"{self.adamw_rate:.4g}"} if self.adamw_rate else {})
        return folder_of(os.path.join(out, self.model.name), named | rates | {"seed": str(self.seed)})

    def options(self):
        """All flags of the run except paths."""
        rates = {"lr": self.rate} | ({"adamw-lr": self.adamw_rate} if self.adamw_rate else {})
        return self.model.flags | dict(self.flags) | rates | {"seed": self.seed}


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
        models = {}
        for model, flags in values.pop("models").items():
            rates, beside = flags.pop("rates"), flags.pop("adamw_beside", None)
            models[model] = Model(model, flags, rates, beside)
        scales[name] = build(Scale, f"{path}: {name}", {"name": name, "max_tokens": 0, "models": models} | values)
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


def flags_of(table, row, model):
    flags = table.flags | row.flags | row.model_flags.get(model.name, {})
    if flags["optimizer"] != "teon":
        flags = {k: v for k, v in flags.items() if not k.startswith("teon-")}
    if flags["optimizer"] == "adamw":
        flags = {k: v for k, v in flags.items() if k not in ("ortho", "ns-steps")}
    return tuple(sorted((k, v) for k, v in flags.items() if DEFAULTS.get(k) != v))


def adamw_row(program):
    """Returns the row whose best rate is AdamW's rate beside Muon and Teon, and its table."""
    flags = {"optimizer": "adamw", "weight-decay": 0.1, "schedule": "cosine", "warmup-ratio": 0.1}
    row = Row("AdamW", flags)
    return Table("adamw", 0, "", "", "", program, [], {}, [row]), row


def cell_of(table, row, model, rate, adamw_rate, seed):
    beside = None if row.flags.get("optimizer") == "adamw" else adamw_rate
    return Cell(table.program, model, flags_of(table, row, model), rate, beside, seed)
