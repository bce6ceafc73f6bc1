#!/usr/bin/env python3
"""Measures a training step in PyTorch, for comparison:  python3 dev/bench_torch.py --device cpu

GPT-2 with tied head, or LLaMA (--family llama), AdamW (decoupled decay, matrices only), global-norm clipping, random
tokens. On a GPU: bf16 autocast, fused AdamW with float32 state, torch.compile, the backend of attention that is fastest
at this shape. On a CPU: float32 and eager, unless --dtype bf16 and --compile are given. Prints one JSON object.

At the shapes of bench/bench_gpu.cu also an object for each measurement: --attention, causal
scaled_dot_product_attention alone, bf16, with every backend that this PyTorch has on the device; --norms, layer norm,
on a GPU compiled. A CPU needs --rows: fewer than a GPU's 16384 and 65536.
"""

if __name__ == "__main__":
    from begin import startup

import contextlib
import json
import statistics
import sys
import time

try:
    import torch
    import torch.nn.functional as F
    from torch import nn
except ImportError:
    sys.exit("bench_torch.py: error: needs PyTorch: pip install torch")
from common.arguments import Parser, whole


def initialize(model):
    for p in model.parameters():
        if p.dim() >= 2:
            nn.init.normal_(p, std=0.02)


class Block(nn.Module):
    def __init__(self, C, NH):
        super().__init__()
        self.NH = NH
        self.norm1, self.norm2 = nn.LayerNorm(C), nn.LayerNorm(C)
        self.qkv, self.out = nn.Linear(C, 3 * C), nn.Linear(C, C)
        self.up, self.down = nn.Linear(C, 4 * C), nn.Linear(4 * C, C)

    def forward(self, x):
        B, T, C = x.shape
        q, k, v = (y.view(B, T, self.NH, -1).transpose(1, 2) for y in self.qkv(self.norm1(x)).split(C, dim=2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(B, T, C))
        return x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))


class GPT2(nn.Module):
    def __init__(self, V, T, C, L, NH):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(V, C), nn.Embedding(T, C)
        self.blocks = nn.ModuleList(Block(C, NH) for _ in range(L))
        self.norm = nn.LayerNorm(C)
        self.head = nn.Linear(C, V, bias=False)
        self.head.weight = self.tokens.weight
        initialize(self)

    def forward(self, tokens, targets):
        x = self.tokens(tokens) + self.positions.weight[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        return F.cross_entropy(self.head(self.norm(x)).flatten(0, 1), targets.flatten())


class LlamaBlock(nn.Module):
    def __init__(self, C, NH, NKV, FFN):
        super().__init__()
        self.HS = C // NH
        self.widths = (C, NKV * self.HS, NKV * self.HS)
        self.norm1, self.norm2 = nn.RMSNorm(C), nn.RMSNorm(C)
        self.qkv, self.out = nn.Linear(C, sum(self.widths), bias=False), nn.Linear(C, C, bias=False)
        self.up, self.down = nn.Linear(C, 2 * FFN, bias=False), nn.Linear(FFN, C, bias=False)

    def forward(self, x, cos, sin):
        B, T, C = x.shape
        q, k, v = (y.view(B, T, -1, self.HS).transpose(1, 2)
                   for y in self.qkv(self.norm1(x)).split(self.widths, dim=2))
        rotate = lambda y: y * cos + torch.cat([-y[..., y.shape[-1] // 2:], y[..., :y.shape[-1] // 2]], dim=-1) * sin
        y = F.scaled_dot_product_attention(rotate(q).to(v.dtype), rotate(k).to(v.dtype), v, is_causal=True,
                                           enable_gqa=q.shape[1] != k.shape[1])
        x = x + self.out(y.transpose(1, 2).reshape(B, T, C))
        gate, up = self.up(self.norm2(x)).chunk(2, dim=-1)
        return x + self.down(F.silu(gate) * up)


class Llama(nn.Module):
    def __init__(self, V, T, C, L, NH, NKV, FFN):
        super().__init__()
        self.tokens, self.norm = nn.Embedding(V, C), nn.RMSNorm(C)
        self.blocks = nn.ModuleList(LlamaBlock(C, NH, NKV, FFN) for _ in range(L))
        self.head = nn.Linear(C, V, bias=False)
        HS = C // NH
        angles = torch.outer(torch.arange(T), 10000.0 ** (-torch.arange(0, HS, 2) / HS)).repeat(1, 2)
        self.register_buffer("cos", angles.cos())
        self.register_buffer("sin", angles.sin())
        initialize(self)

    def forward(self, tokens, targets):
        x = self.tokens(tokens)
        for block in self.blocks:
            x = block(x, self.cos, self.sin)
        return F.cross_entropy(self.head(self.norm(x)).flatten(0, 1), targets.flatten())


def timed(run, device="cuda"):
    """Milliseconds of a run: the mean of 5."""
    if device == "cpu":
        start = time.perf_counter()
        for _ in range(5):
            run()
        return (time.perf_counter() - start) / 5 * 1000
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    for _ in range(5):
        run()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / 5


def backends():
    from torch.nn.attention import SDPBackend

    return {"flash": SDPBackend.FLASH_ATTENTION, "cudnn": SDPBackend.CUDNN_ATTENTION,
            "efficient": SDPBackend.EFFICIENT_ATTENTION}


def attention_ms(B, NH, T, HS, device="cuda"):
    """Returns {(backend, pass): median milliseconds of 7 measurements}. The backends take turns."""
    from torch.nn.attention import sdpa_kernel

    q, k, v, dout = (torch.randn((B, NH, T, HS), device=device, dtype=torch.bfloat16) for _ in range(4))
    for x in (q, k, v):
        x.requires_grad_()
    ms = {}
    for turn in range(8):
        for name, backend in backends().items():
            try:
                with sdpa_kernel(backend):
                    out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
                    passes = {"forward": lambda: F.scaled_dot_product_attention(q, k, v, is_causal=True),
                              "backward": lambda: torch.autograd.grad(out, (q, k, v), dout, retain_graph=True)}
                    for which, run in passes.items():
                        measured = timed(run, device)
                        if turn > 0:  # the first turn warms up
                            ms.setdefault((name, which), []).append(measured)
            except RuntimeError:  # this PyTorch or GPU lacks the backend
                continue
    return {key: statistics.median(values) for key, values in ms.items()}


def attention(args):
    """Measures attention over --rows (16384) tokens of 1024 channels."""
    rows = args.rows or 16384
    for HS in (64, 128):
        for T in (T for T in (256, 1024, 8192) if T <= rows):
            for (name, which), ms in attention_ms(rows // T, 1024 // HS, T, HS, args.device).items():
                print(json.dumps({"kind": "attention", "method": f"PyTorch {name}", "pass": which, "B": rows // T,
                                  "T": T, "NH": 1024 // HS, "HS": HS, "ms": ms}), flush=True)


def best_attention(B, NH, T, HS):
    """The name of the backend whose passes take the least time together, or None."""
    ms = attention_ms(B, NH, T, HS)
    whole = {name: ms[name, "forward"] + ms[name, "backward"] for name, _ in ms}
    return min(whole, key=whole.get, default=None)


def chosen_attention(name):
    """A context in which attention uses the backend of that name."""
    if name is None:
        return contextlib.nullcontext()
    from torch.nn.attention import sdpa_kernel

    return sdpa_kernel(backends()[name])


def norms(args):
    """Measures layer norm of --rows (65536) rows of 768 channels, bf16."""
    rows, C, device = args.rows or 65536, 768, args.device
    x, dout = (torch.randn((rows, C), device=device, dtype=torch.bfloat16) for _ in range(2))
    weight, bias = (torch.randn(C, device=device, dtype=torch.bfloat16, requires_grad=True) for _ in range(2))
    x.requires_grad_()
    norm = lambda x: F.layer_norm(x, (C,), weight, bias)
    if device == "cuda" or args.compile:
        norm = torch.compile(norm)
    out = norm(x)
    for name, run in {"norm forward": lambda: norm(x),
                      "norm backward": lambda: torch.autograd.grad(out, (x, weight, bias), dout,
                                                                   retain_graph=True)}.items():
        timed(run, device)
        print(json.dumps({"kind": "kernel", "name": name,
                          "ms": statistics.median(timed(run, device) for _ in range(7))}), flush=True)


def parse():
    parser = Parser(__doc__)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", help="cpu or cuda")
    for flag, default in (("layers", 12), ("channels", 768), ("heads", 12), ("seq-len", 1024), ("batch", 16),
                          ("vocab-size", 50304), ("micro-steps", 1), ("steps", 40)):
        parser.add_argument(f"--{flag}", type=whole(1), default=default, help=f"(default {default})")
    parser.add_argument("--dtype", choices=("float", "bf16"), help="bf16 uses autocast (default: float on a CPU)")
    parser.add_argument("--compile", action="store_true", help="on a CPU: torch.compile")
    parser.add_argument("--family", choices=("gpt2", "llama"), default="gpt2", help="(default gpt2)")
    parser.add_argument("--ffn", type=whole(1), default=2048, help="LLaMA's width of the MLP (default 2048)")
    parser.add_argument("--kv-heads", type=whole(1), help="LLaMA's key/value heads (default --heads)")
    parser.add_argument("--attention", action="store_true", help="measure attention alone instead of a model")
    parser.add_argument("--norms", action="store_true", help="measure layer norm alone instead of a model")
    parser.add_argument("--rows", type=whole(256), help="tokens of --attention and --norms (default: as bench_gpu)")
    args = parser.parse_args()
    if (args.attention or args.norms) and args.device == "cpu" and not args.rows:
        parser.error("--attention and --norms on a CPU need --rows, 256 or more")
    return args


def main():
    args = parse()
    torch.manual_seed(1)
    if args.attention or args.norms:
        return attention(args) if args.attention else norms(args)
    gpu = args.device == "cuda"
    shape = (args.vocab_size, args.seq_len, args.channels, args.layers, args.heads)
    is_gpt2 = args.family == "gpt2"
    model = (GPT2(*shape) if is_gpt2 else Llama(*shape, args.kv_heads or args.heads, args.ffn)).to(args.device)
    best = best_attention(args.batch, args.heads, args.seq_len, args.channels // args.heads) if gpu else None
    matrices = [p for p in model.parameters() if p.dim() >= 2]
    vectors = [p for p in model.parameters() if p.dim() < 2]
    optimizer = torch.optim.AdamW([{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}],
                                  lr=1e-4, betas=(0.9, 0.95), fused=gpu)
    loss_of = torch.compile(model) if gpu or args.compile else model
    half = args.dtype == "bf16" or (gpu and args.dtype is None)
    if gpu:
        torch.set_float32_matmul_precision("high")

    def step():
        optimizer.zero_grad(set_to_none=True)
        for _ in range(args.micro_steps):
            tokens = torch.randint(args.vocab_size, (args.batch, args.seq_len + 1), device=args.device)
            with chosen_attention(best), torch.autocast(args.device, torch.bfloat16, enabled=half):
                loss = loss_of(tokens[:, :-1], tokens[:, 1:])
            (loss / args.micro_steps).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss.item()

    ms, cpu = [], []
    for _ in range(args.steps):
        begin, cpu_begin = time.perf_counter(), time.process_time()
        loss = step()
        ms.append(1000 * (time.perf_counter() - begin))
        cpu.append(time.process_time() - cpu_begin)
    median = statistics.median(ms[args.steps // 4:])
    print(json.dumps({"torch": torch.__version__, "device": torch.cuda.get_device_name() if gpu else "cpu",
                      "ms": median, "cpu_s": statistics.median(cpu[args.steps // 4:]), "attention": best,
                      "tokens_per_s": args.micro_steps * args.batch * args.seq_len / median * 1000, "loss": loss}))


if __name__ == "__main__":
    sys.exit(startup.exit_code(main))
