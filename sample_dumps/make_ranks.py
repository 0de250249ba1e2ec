"""Makes msprobe_two_ranks: two processes train one network on batches of their own, gloo between them, for two steps.

Each step the gradients of both are summed in one all_reduce, as DistributedDataParallel does with a bucket. In the
target rank 1 computes the second linear of step 1 wrong: a tile of its output is zero. What runs forward is recorded.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

RANKS, STEPS = 2, 2
FAULT = (1, 1)  # rank and step


def train(rank: int, folder: str, meeting: str, faulty: bool) -> None:
    """What one rank does."""
    import torch
    import torch.distributed as dist
    import torch.nn.functional as F

    torch.manual_seed(0)
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    linear, calls = F.linear, [0]

    def without_a_tile(x, weight, bias=None):
        calls[0] += 1
        y = linear(x, weight, bias)
        if calls[0] == 2 * (FAULT[1] + 1):
            y.data.numpy()[:, 4:8] = 0  # numpy: msprobe must not see an operator
        return y

    if faulty and rank == FAULT[0]:
        F.linear = without_a_tile  # before msprobe wraps it
    model = torch.nn.Sequential(torch.nn.Linear(8, 12, False), torch.nn.Tanh(), torch.nn.Linear(12, 12, False))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    configuration = Path(folder, f"config{rank}.json")
    configuration.write_text(
        json.dumps({
            "task": "tensor", "dump_path": folder, "rank": [], "step": [], "level": "L1", "async_dump": False,
            "tensor": {"scope": [], "list": [], "data_mode": ["forward"]},
        })
    )  # fmt: skip
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=RANKS)
    from msprobe.pytorch import PrecisionDebugger

    debugger = PrecisionDebugger(config_path=str(configuration))
    for step in range(STEPS):
        batch = torch.Generator().manual_seed(RANKS * step + rank)
        x, labels = torch.randn(6, 8, generator=batch), torch.randint(0, 12, (6,), generator=batch)
        debugger.start(model)
        F.cross_entropy(model(x), labels).backward()
        bucket = torch.from_numpy(joined(model))
        dist.all_reduce(bucket)
        debugger.stop()
        debugger.step()
        shared_out(model, bucket.numpy() / RANKS)
        optimizer.step()
        optimizer.zero_grad()
    dist.barrier()
    dist.destroy_process_group()


def joined(model):
    """All gradients in one row, made without an operator that msprobe would see."""
    import numpy as np

    return np.concatenate([parameter.grad.numpy().reshape(-1) for parameter in model.parameters()])


def shared_out(model, gradients):
    """The other way round."""
    start = 0
    for parameter in model.parameters():
        end = start + parameter.numel()
        parameter.grad.numpy()[...] = gradients[start:end].reshape(parameter.shape)
        start = end


def run(folder: str, faulty: bool) -> None:
    """Both ranks, each a process."""
    meeting = str(Path(folder, "meeting"))
    words = [[sys.executable, __file__, str(rank), folder, meeting, str(int(faulty))] for rank in range(RANKS)]
    ranks = [subprocess.Popen(one, stdout=subprocess.DEVNULL) for one in words]
    statuses = [rank.wait() for rank in ranks]
    if any(statuses):
        raise SystemExit("a rank failed")


if __name__ == "__main__":
    train(int(sys.argv[1]), sys.argv[2], sys.argv[3], bool(int(sys.argv[4])))
