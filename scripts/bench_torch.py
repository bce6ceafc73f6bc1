#!/usr/bin/env python3
"""Measures train_gpt2's step in PyTorch, for comparison:  python3 scripts/bench_torch.py --device cpu

GPT-2 with tied head, AdamW (decoupled decay, matrices only), global-norm clipping, random tokens. On a GPU: bf16
autocast, fused AdamW with float32 state, torch.compile. On a CPU: float32 and eager, unless --dtype bf16 and --compile
are given. Prints one JSON object.

--attention (on a GPU) measures causal scaled_dot_product_attention alone, bf16, forward and backward, with every
backend of this PyTorch; one JSON object per shape, backend and pass, at the shapes of bench/bench_gpu.cu.
"""

if __name__ == "__main__":
    import startup

    startup.begin()

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
from arguments import Parser, whole


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
        for p in self.parameters():
            if p.dim() >= 2:
                nn.init.normal_(p, std=0.02)

    def forward(self, tokens, targets):
        x = self.tokens(tokens) + self.positions.weight[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        return F.cross_entropy(self.head(self.norm(x)).flatten(0, 1), targets.flatten())


def attention():
    """Measures attention over 16384 tokens of 1024 channels. One measurement is the mean of 5 runs; prints the median
    of 7 measurements. The backends take turns."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    backends = {"flash": SDPBackend.FLASH_ATTENTION, "cudnn": SDPBackend.CUDNN_ATTENTION,
                "efficient": SDPBackend.EFFICIENT_ATTENTION}

    def timed(run):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(5):
            run()
        end.record()
        end.synchronize()
        return begin.elapsed_time(end) / 5

    for HS in (64, 128):
        for T in (256, 1024, 8192):
            shape = (16384 // T, 1024 // HS, T, HS)
            q, k, v, dout = (torch.randn(shape, device="cuda", dtype=torch.bfloat16) for _ in range(4))
            for x in (q, k, v):
                x.requires_grad_()
            ms = {}
            for turn in range(8):
                for name, backend in backends.items():
                    try:
                        with sdpa_kernel(backend):
                            out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
                            passes = {"forward": lambda: F.scaled_dot_product_attention(q, k, v, is_causal=True),
                                      "backward": lambda: torch.autograd.grad(out, (q, k, v), dout, retain_graph=True)}
                            for which, run in passes.items():
                                measured = timed(run)
                                if turn > 0:  # the first turn warms up
                                    ms.setdefault((name, which), []).append(measured)
                    except RuntimeError:  # this PyTorch or GPU lacks the backend
                        continue
            for (name, which), values in ms.items():
                print(json.dumps({"kind": "attention", "method": f"PyTorch {name}", "pass": which, "B": shape[0],
                                  "T": T, "NH": shape[1], "HS": HS, "ms": statistics.median(values)}), flush=True)


def main():
    parser = Parser(__doc__)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", help="cpu or cuda")
    for flag, default in (("layers", 12), ("channels", 768), ("heads", 12), ("seq-len", 1024), ("batch", 16),
                          ("vocab-size", 50304), ("micro-steps", 1), ("steps", 40)):
        parser.add_argument(f"--{flag}", type=whole(1), default=default, help=f"(default {default})")
    parser.add_argument("--dtype", choices=("float", "bf16"), help="bf16 uses autocast (default: float on a CPU)")
    parser.add_argument("--compile", action="store_true", help="on a CPU: torch.compile")
    parser.add_argument("--attention", action="store_true", help="measure attention alone instead of a model")
    args = parser.parse_args()
    torch.manual_seed(1)
    if args.attention:
        return attention()
    gpu = args.device == "cuda"
    model = GPT2(args.vocab_size, args.seq_len, args.channels, args.layers, args.heads).to(args.device)
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
            with torch.autocast(args.device, torch.bfloat16, enabled=half):
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
                      "ms": median, "cpu_s": statistics.median(cpu[args.steps // 4:]),
                      "tokens_per_s": args.micro_steps * args.batch * args.seq_len / median * 1000, "loss": loss}))


if __name__ == "__main__":
    sys.exit(startup.exit_code(main))
