"""Small matrices and models for the tests of scripts/teon_torch."""
import contextlib

try:
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode
except ImportError:
    torch, TorchDispatchMode = None, object
try:
    import transformers
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
except ImportError:
    transformers = None


def matrix(rows=6, columns=4, dtype=None, seed=0):
    """Returns a parameter with a gradient."""
    generator = torch.Generator().manual_seed(seed)
    p = torch.nn.Parameter(torch.randn(rows, columns, generator=generator).to(dtype or torch.float32))
    p.grad = torch.randn(rows, columns, generator=generator).to(p.dtype)
    return p


def gpt2(layers=4, **options):
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(
        n_layer=layers, **(options or dict(n_embd=32, n_head=2, vocab_size=64, n_positions=16)), bos_token_id=0,
        eos_token_id=0))


@contextlib.contextmanager
def one_rank():
    """Initializes torch.distributed with this process as the only rank."""
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    try:
        yield
    finally:
        torch.distributed.destroy_process_group()


class Operations(TorchDispatchMode):
    """Records the operations that run inside it, except views."""

    def __init__(self):
        super().__init__()
        self.calls = []

    def __torch_dispatch__(self, operation, types, arguments=(), options=None):
        if not operation.is_view and not operation.namespace == "profiler":
            self.calls.append((str(operation), arguments))
        return operation(*arguments, **(options or {}))

    def names(self):
        return [name for name, _ in self.calls]
