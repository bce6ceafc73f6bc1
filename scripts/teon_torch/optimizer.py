"""Teon and Muon. The update of a stack of K matrices W_k (m x n, outputs x inputs), arXiv 2601.23261, algorithm 1:

    M_k <- mu M_k + G_k                                momentum, as a sum, in float
    Z   <- unfold_i(M_1 .. M_K)                        mode 1: [M_1 M_2 ..]; 2: [M_1^T M_2^T ..]; 3: rows vec(M_k)
    O_k <- fold(Ortho(Z))
    W_k <- (1 - lr wd) W_k - lr sqrt(m / n) O_k

Options give the rules of other Muons; elsewhere.py has theirs by name, for Teon.like().

Tests compare it with the expected steps of the engine's tests, with a float64 reference and with torch.optim.Muon.
"""
import collections
import functools
import math

import torch

from teon_torch import distribution
from teon_torch.buckets import Plan, mean_dim, momentum_type, rows_of_parts, stacked, store
from teon_torch.distribution import Agreement, DTensor, as_local
from teon_torch.elsewhere import LIKE
from teon_torch.orthogonalization import FORMS, NEWTON_SCHULZ
from teon_torch.update import NESTEROV_FORMS, SCALES, decay_factor, momentum_factors, update_of_stacks

PLANNED = ("k", "experts", "transposed", "neuron_norm", "neuron_axis")         # options on which a step's plan depends
NO_OPTIONS = ("params", "param_names", "lr", "initial_lr")       # of a group

# For each option, a description and a test of valid values.
RATE = ("a finite number, at least 0", lambda x: 0 <= x < math.inf)
DECAY = ("at least 0 and less than 1", lambda x: 0 <= x < 1)
COUNT = ("an integer, at least 1", lambda x: isinstance(x, int) and x >= 1)
COUNT_OR_NONE = ("None or an integer, at least 1", lambda x: x is None or COUNT[1](x))
PARTS = ("an integer, at least 1, or a tuple of them",
         lambda x: all(map(COUNT[1], x if isinstance(x, (tuple, list)) else [x])))
def one_of(names):
    return ", ".join(names), lambda x: x in names


LEGAL = {"lr": RATE, "weight_decay": RATE, "momentum": DECAY, "momentum_start": DECAY, "neuron_beta2": DECAY,
         "k": COUNT, "parts": PARTS, "momentum_warmup": ("an integer, at least 0", lambda x: x == 0 or COUNT[1](x)),
         "ns_steps": COUNT_OR_NONE, "head_size": COUNT_OR_NONE, "mode": ("1, 2 or 3", lambda x: x in (1, 2, 3)),
         "ortho": one_of(["svd", *NEWTON_SCHULZ]), "ns_form": one_of(FORMS), "nesterov_form": one_of(NESTEROV_FORMS),
         "update_scale": one_of([*SCALES, "rms"]), "decay_at": one_of(["base", "adjusted"]),
         "neuron_axis": one_of(["rows", "long"]),
         "ns_dtype": ("None or a floating-point type", lambda x: x is None or getattr(x, "is_floating_point", False)),
         "experts": one_of(["each", "stack"]),
         "update_rms": ("None or a positive number", lambda x: x is None or 0 < x < math.inf)}


class Teon(torch.optim.Optimizer):
    """params: matrices, or groups (dicts) whose "params" are one role's matrices in layer order, as made by
    stacks_of(). Each k consecutive ones are a stack; the last may be shorter. k = 1 is Muon. A matrix without a
    gradient is skipped, and the others of its stack are orthogonalized without it.

    parts: the number of roles in each matrix, as row blocks (3: a joined QKV), which are stacked separately. If the
    blocks differ in size (grouped-query attention), a tuple of their rows.
    transposed: matrices are stored input x output (transformers' Conv1D), so m and n are exchanged.
    experts: tensors (experts, m, n) hold the matrices of a mixture's experts. "each": every expert's is a Muon matrix;
    "stack": each k consecutive experts of a tensor are a stack.
    head_size: rows of an attention head; the rows of each head are orthogonalized separately (--ortho-per-head).
    rms_match: scale O_k so that the mean slice has the size of Muon's update (docs/optimizers.md).
    normalize_slices: divide each M_k by its norm before stacking.
    update_scale: the factor of an update: "spectral", sqrt(m / n); "original", sqrt(max(1, m / n)), Keller Jordan's;
    "rms", update_rms sqrt(max(m, n)) (Moonlight, arXiv 2502.16982); "none", 1. update_rms (with "rms" 0.2) alone is
    "rms".
    decay_at: weight decay at the "base" rate, or at the "adjusted" one, the rate times that factor.
    nesterov: orthogonalize g + mu M. nesterov_form: "usual"; "bias-corrected", g + mu (1 - mu^t) / (1 - mu^(t+1)) M in
    update t (optax); "ema", g + (1 - mu) M (heavyball).
    momentum_warmup: updates in which the momentum rises linearly from momentum_start. M stays in proportion to the
    average of gradients.
    neuron_norm: NorMuon's normalization of each row of an update (arXiv 2510.05491), with neuron_beta2. neuron_axis
    "long": of each column, if a matrix is wider than high. renormalize: gives the update the norm sqrt(min(m, n)) first
    (Muon+, arXiv 2602.21545).
    equalize_rows: orthogonalize rows of one norm (MuonEq, arXiv 2603.28254).
    cautious_weight_decay: decay only weights that the update does not move away from zero (arXiv 2510.12402).
    ortho, ns_steps (None: 5), ns_dtype, ns_form: as in orthogonalize().
    capturable: step() can be captured as a CUDA graph after one uncaptured step; lr is then a tensor on the GPU, or
    fixed. What counts updates (bias-corrected, momentum_warmup) cannot be captured.

    Several ranks: DTensors (FSDP2, HSDP, tensor parallelism) keep their momentum sharded as they are; an owner of each
    stack collects it and returns the update (distribution.py). process_group: tensors that are not DTensors are equal
    on all its ranks (DistributedDataParallel), which divide the stacks; None: each process updates all of them.
    shard: with a process_group, "optimizer" keeps momentum on each stack's owner only.

    All matrices of one shape in a group are updated together; the number of launches does not depend on their number.
    Raises ValueError for invalid options and matrices, and leaves the optimizer unchanged; and, on every rank and
    before anything is sent, if ranks are about to update different matrices."""

    def __init__(self, params, lr=0.02, momentum=0.95, weight_decay=0.1, nesterov=False, k=1, mode=1,
                 ortho="polar-express", ns_steps=None, ns_dtype=None, ns_form="auto", rms_match=False,
                 normalize_slices=False, parts=1, transposed=False, experts="each", head_size=None, update_rms=None,
                 neuron_norm=False, neuron_beta2=0.95, cautious_weight_decay=False, maximize=False, capturable=False,
                 process_group=None, shard="none", update_scale="spectral", decay_at="base", nesterov_form="usual",
                 momentum_start=0.85, momentum_warmup=0, neuron_axis="rows", renormalize=False, equalize_rows=False):
        defaults = dict(lr=lr, momentum=momentum, weight_decay=weight_decay, nesterov=nesterov, k=k, mode=mode,
                        ortho=ortho, ns_steps=ns_steps, ns_dtype=ns_dtype, ns_form=ns_form,
                        rms_match=rms_match, normalize_slices=normalize_slices, parts=parts, transposed=transposed,
                        experts=experts, head_size=head_size, update_rms=update_rms, neuron_norm=neuron_norm,
                        neuron_beta2=neuron_beta2, cautious_weight_decay=cautious_weight_decay, maximize=maximize,
                        capturable=capturable, update_scale=update_scale, decay_at=decay_at,
                        nesterov_form=nesterov_form, momentum_start=momentum_start, momentum_warmup=momentum_warmup,
                        neuron_axis=neuron_axis, renormalize=renormalize, equalize_rows=equalize_rows, updates=0)
        self.process_group, self.shard = process_group, shard
        self._plan, self._agreements = None, {}
        self._check(defaults | {"params": []})
        if shard not in ("none", "optimizer") or (shard == "optimizer" and process_group is None):
            raise ValueError(f"shard is {shard!r}; expected none, or optimizer with a process_group")
        super().__init__(params, defaults)

    @classmethod
    def like(cls, name, params, **options):
        """Returns a Teon that makes the steps of another package's Muon with its defaults; options win over these.
        docs/optimizers.md says what each package does besides."""
        if name not in LIKE:
            raise ValueError(f"like is {name!r}; expected {', '.join(LIKE)}")
        return cls(params, **LIKE[name].options | options)

    def add_param_group(self, param_group):
        super().add_param_group(param_group)
        try:
            self._check(self.param_groups[-1])
        except Exception:
            del self.param_groups[-1]
            raise

    def __setstate__(self, state):
        super().__setstate__(state)
        self._plan, self._agreements = None, {}
        self.process_group, self.shard = getattr(self, "process_group", None), getattr(self, "shard", "none")
        for group in self.param_groups:  # an earlier version may have fewer options, or more
            for name, value in self.defaults.items():
                group.setdefault(name, value)
            if group.pop("ns_aol", False):
                raise ValueError("the state is of a run with ns_aol, which was removed after version 0.2.0: it gained "
                                 "nothing; leave it out")
            self._check(group)

    def load_state_dict(self, state_dict):
        given = {}
        handle = self.register_load_state_dict_pre_hook(lambda _, final: given.update(final))
        try:
            super().load_state_dict(state_dict)
        finally:
            handle.remove()
        # Optimizer casts all state to the parameter's type, but the momentum of a bfloat16 matrix must stay float.
        loaded = [i for group in given["param_groups"] for i in group["params"]]
        places = [(p, mean_dim(group, p.shape)) for group in self.param_groups for p in group["params"]]
        for i, (p, reduced) in zip(loaded, places):
            for name, dim in (("momentum", None), ("neurons", reduced)):
                if name in given["state"].get(i, {}):
                    value = distribution.placed_for(given["state"][i][name], p, dim)
                    self.state[p][name] = value.to(p.device, momentum_type(p))
        for p in self._current_plan().elsewhere:
            self.state[p] = {}

    def _check(self, group):
        where = group.get("role", "a group of matrices")
        if torch.is_tensor(group["lr"]) and group["lr"].numel() != 1:
            raise ValueError(f"{where}: Tensor lr must be 1-element; it has {group['lr'].numel()}")
        for name, (legal, test) in LEGAL.items():
            if not test(group[name]):
                raise ValueError(f"{where}: {name} is {group[name]!r}; expected {legal}")
        if group["capturable"] and group["ortho"] == "svd":
            raise ValueError(f"{where}: svd waits for the GPU, so it cannot be captured; choose another ortho")
        if group["capturable"] and (group["momentum_warmup"] or group["nesterov_form"] == "bias-corrected"):
            raise ValueError(f"{where}: a captured step does not count updates, which momentum_warmup and "
                             "bias-corrected need; leave capturable out")
        if group["neuron_axis"] == "long" and (group["parts"] != 1 or group["head_size"]):
            raise ValueError(f"{where}: neuron_axis='long' is of whole matrices; leave parts and head_size out")
        if group["renormalize"] and not group["neuron_norm"]:
            raise ValueError(f"{where}: renormalize is of neuron_norm=True")
        if group["update_rms"] and group["update_scale"] not in ("spectral", "rms"):
            raise ValueError(f"{where}: update_rms is of update_scale='rms'; it is {group['update_scale']!r}")
        sharded = [p for p in group["params"] if isinstance(p, DTensor)]
        if self.shard == "optimizer" and sharded:
            raise ValueError(f"{where}: shard='optimizer' divides the state of replicated matrices over a "
                             "process_group; DTensors have their state where they are")
        for p in sharded:
            distribution.sharding_of(p, where)
        for p in group["params"]:
            if p.ndim not in (2, 3) or not p.numel() or not p.is_floating_point():
                raise ValueError(f"{where}: a tensor of shape {tuple(p.shape)} and {p.dtype} is not a matrix of "
                                 "floats; give it to AdamW")
            if p.ndim == 3 and group["k"] > 1 and group["experts"] == "each":
                raise ValueError(f"{where}: a tensor of shape {tuple(p.shape)} holds experts, which are stacked with "
                                 "experts='stack' only; choose that, or k=1")
            outputs = p.shape[-1 if group["transposed"] else -2]
            blocks = rows_of_parts(outputs, group["parts"])
            if sum(blocks) != outputs:
                raise ValueError(f"{where}: {outputs} outputs cannot be cut into {group['parts']} parts")
            if group["decay_at"] == "adjusted" and len(set(blocks)) > 1:
                raise ValueError(f"{where}: parts of {blocks} rows have different rates, and decay_at='adjusted' is of "
                                 "matrices with one; give the parts parameters of their own")
            if group["head_size"] and any(rows % group["head_size"] for rows in blocks):
                raise ValueError(f"{where}: {blocks} rows cannot be cut into heads of {group['head_size']}")
        kinds = {(tuple(p.shape), p.dtype, str(p.device)) for p in group["params"]}
        if group["k"] > 1 and group["experts"] == "each" and len(kinds) > 1:
            raise ValueError(f"{where}: stacked matrices have one shape, type and device; found "
                             f"{', '.join(sorted(map(str, kinds)))}")

    @torch.no_grad()
    def step(self, closure=None):
        """Performs one update and returns the result of closure. Raises RuntimeError, before any change, for sparse
        gradients and for a capture that was not prepared; ValueError if ranks differ, or if a gradient is on another
        mesh than its parameter."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        capturing = torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()
        for group in self.param_groups:
            moving = [p for p in group["params"] if p.grad is not None]
            if any(p.grad.layout != torch.strided for p in moving):
                raise RuntimeError("Teon does not support sparse gradients")
            if capturing and not (group["capturable"] and all(self.state.get(p) for p in moving)):
                raise RuntimeError("to capture step(), construct Teon with capturable=True and take one step before")
        plan = self._current_plan()
        self._agree(plan)
        if plan.refusal:
            raise ValueError(plan.refusal)
        self._make_states(plan)
        overlap((self._update(bucket) for bucket in plan.buckets), plan.exchanges)
        for group in self.param_groups:
            group["updates"] += 1
        return loss

    def _current_plan(self):
        """Returns the plan for the matrices that have gradients now; it changes only if they or PLANNED options do."""
        key = tuple((id(p), p.grad is None, distribution.place_of(p), distribution.place_of(p.grad))
                    for group in self.param_groups for p in group["params"])
        key += tuple(group[name] for group in self.param_groups for name in PLANNED)
        if self._plan is None or self._plan.key != key:
            self._plan = Plan(key, self.param_groups, self.process_group, self.shard == "optimizer")
            self._plan.refusal = self._plan.refusal or self._missing_state(set(self._plan.elsewhere))
        return self._plan

    def _missing_state(self, elsewhere):
        """Returns why a step would lose momentum, or None: a parameter moved, or a state that was saved with
        shard="optimizer" has nothing for matrices whose owners were other ranks. Other options give other owners."""
        for i, group in enumerate(self.param_groups):
            for at, p in enumerate(group["params"]):
                name = f"{group.get('role', f'group {i}')}, matrix {at}"
                state = self.state.get(p)
                if state and distribution.place_of(p) != distribution.place_of(state["momentum"]):
                    return (f"{name}: the parameter moved to another mesh or placement after a step; save and load the "
                            "optimizer's state with torch.distributed.checkpoint around it")
                if state == {} and p not in elsewhere:
                    return (f"{name}: its momentum was on another rank when it was saved; construct Teon with the "
                            "saved options (k, mode, ...), or load with torch.distributed.checkpoint what all ranks "
                            "saved")
        return None

    def _agree(self, plan):
        """Raises ValueError on every rank if ranks are about to update different matrices, with different options or at
        different rates, or if one refuses the step."""
        if not plan.rows and not self._agreements:
            return
        rows = {"the step": plan.refusal or "ready"}
        for i, group in enumerate(self.param_groups):
            role = group.get("role", f"group {i}")
            if not (torch.is_tensor(group["lr"]) and group["lr"].is_cuda):  # reading it would wait for the GPU
                rows[f"the rate of {role}"] = str(float(group["lr"]))
            options = {name: value for name, value in sorted(group.items()) if name not in NO_OPTIONS}
            rows[f"the options of {role}"] = repr(options)
        # The groups of earlier steps first: if matrices of this rank moved to another group, the others wait there.
        for group in dict.fromkeys([*self._agreements, *plan.rows]):
            if group not in self._agreements:
                self._agreements[group] = Agreement(group)
            self._agreements[group].check(plan.rows.get(group, {}) | rows)

    def _make_states(self, plan):
        """Gives every matrix its state, also one without a gradient so far: torch.distributed.checkpoint loads a state
        only if each parameter that requires a gradient has an entry with all tensors. Those that other ranks have get
        an empty one."""
        elsewhere = set(plan.elsewhere)
        for group in self.param_groups:
            for p in group["params"]:
                names = {"momentum": None} | ({"neurons": mean_dim(group, p.shape)} if group["neuron_norm"] else {})
                if p in elsewhere:
                    self.state.setdefault(p, {})
                elif p.requires_grad or p.grad is not None:
                    for name, dim in names.items():  # in one order, in which ranks gather them
                        if name not in self.state[p]:
                            self.state[p][name] = distribution.zeros_for(p, momentum_type(p), dim)

    def _update(self, bucket):
        """Updates a bucket: momentum, orthogonalization, weights. Yields between them while something is sent."""
        group = bucket.group
        direction, neurons = self._direction(bucket), self._neurons(bucket)
        gathering = [(run.momenta.gather(direction), run.neurons.gather(neurons)) for run in bucket.runs]
        del direction, neurons  # a bucket that waits for its exchange keeps no more than it needs
        yield
        # Keep a tensor on its device: reading it would wait for the device, and a captured step would fix its value.
        lr = group["lr"].to(bucket.device).squeeze() if torch.is_tensor(group["lr"]) else group["lr"]
        scattering = []
        for run in bucket.runs:
            update, moments = update_of_stacks(*[x.wait() for x in gathering.pop(0)], run.K, group, lr)
            scattering.append((run.updates.scatter(update), run.neurons.scatter(moments)))
            del update, moments
        yield
        update = functools.reduce(torch.add, [update.wait() for update, _ in scattering])
        weights = stacked(bucket.params).to(update.dtype)
        keep = 1 - lr * (group["weight_decay"] * decay_factor(group, bucket.params[0].shape))
        if group["cautious_weight_decay"]:
            keep = torch.where(update * weights < 0, torch.ones_like(update), keep)
        store(bucket.params, weights.mul_(keep).sub_(update).to(bucket.params[0].dtype))
        if group["neuron_norm"] and bucket.kept:
            moments = functools.reduce(torch.add, [moments.wait() for _, moments in scattering])
            store(self._states(bucket, "neurons"), moments)

    def _direction(self, bucket):
        """Adds the gradients to the momenta and returns what is orthogonalized, as slices."""
        group, params = bucket.group, bucket.kept
        if not params:
            return bucket.no_slices()
        momenta = [as_local(momentum) for momentum in self._states(bucket, "momentum")]
        grads = [as_local(distribution.placed_as(p.grad, p)) for p in params]
        if grads[0].dtype != momenta[0].dtype:
            grads = torch.stack(grads).to(momenta[0].dtype).unbind()
        sign = -1 if group["maximize"] else 1
        keep, add, ahead = momentum_factors(group)
        torch._foreach_mul_(momenta, keep)
        torch._foreach_add_(momenta, grads, alpha=sign * add)
        direction = stacked(momenta)
        return direction.mul_(ahead).add_(stacked(grads), alpha=sign) if group["nesterov"] else direction

    def _neurons(self, bucket):
        """Returns NorMuon's second moments as slices, or None without neuron_norm."""
        if not bucket.group["neuron_norm"]:
            return None
        return stacked(self._states(bucket, "neurons")) if bucket.kept else bucket.no_slices()

    def _states(self, bucket, name):
        return [self.state[p][name] for p in bucket.kept]


def overlap(updates, sends):
    """Runs the parts of generators, one after the other. If they send: of three successive ones, the first part of the
    last, then the second part of the one before, then the third part of the first, so that each part's exchange runs
    beside the work of another."""
    under_way = collections.deque()
    for update in updates:
        next(update)
        under_way.append(update)
        if sends:
            advance(under_way, len(under_way) - 1)
        else:
            collections.deque(under_way.pop(), maxlen=0)
    while under_way:
        advance(under_way, len(under_way))


def advance(under_way, count):
    """Runs the next part of the first `count` generators, the last of them first, and removes those that have ended."""
    for update in reversed(list(under_way)[:count]):
        try:
            next(update)
        except StopIteration:
            under_way.remove(update)
