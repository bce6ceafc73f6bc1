"""Runs torchtitan's trainer on CPUs, for test_teon_torch_package.py. torchtitan expects a GPU in three places: its
device has memory statistics, its attention is FlexAttention, which has no backward pass on a CPU, and its gradients are
scaled while they are reduced, which gloo cannot. These are replaced here; the trainer, the model, fully_shard,
schedules and checkpoints are torchtitan's.

    torchrun --nproc-per-node 2 torchtitan_on_cpu.py --module FILE --config FUNCTION ..."""
import types

import torch
from torch.distributed.fsdp import FSDPModule
from torch.nn.attention.flex_attention import create_mask


class CpuDevice(types.ModuleType):
    """torch.cpu with the functions of torch.cuda that torchtitan calls."""

    def __getattr__(self, name):
        return getattr(torch.cpu, name)


def attention(q, k, v, *, block_mask, scale, enable_gqa, **_):
    mask = create_mask(block_mask.mask_mod, len(q), 1, q.shape[2], k.shape[2], device="cpu")
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, mask, scale=scale, enable_gqa=enable_gqa), None


def divide_by(module, factor):
    module.set_force_sum_reduction_for_comms(True)
    set_divide_factor(module, factor)


set_divide_factor = FSDPModule.set_gradient_divide_factor


def main():
    device = CpuDevice("cpu")
    device.current_device = lambda: 0
    device.get_device_name = lambda *_: "CPU"
    device.get_device_properties = lambda *_: types.SimpleNamespace(total_memory=1 << 30)
    device.memory_stats = lambda *_: {}
    device.reset_peak_memory_stats = device.empty_cache = lambda: None
    torch._utils._get_available_device_type = lambda: "cpu"
    torch._utils._get_device_module = lambda _: device
    from torchtitan import train
    from torchtitan.models.common.attention import FlexAttention
    FlexAttention._compiled_flex_attn = staticmethod(attention)
    FSDPModule.set_gradient_divide_factor = divide_by
    train.main()


if __name__ == "__main__":
    main()
