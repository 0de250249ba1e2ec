"""Makes the msprobe and CANN samples of this folder; the others are copies of real runs. See README.md for what is
planted.

    python make.py            writes msprobe_*/ (needs torch and mindstudio-probe) and those of numpy:
    python make.py numpy      cann_*, rerun_scatter, overflow_exp, hdf5_convolution, parity_temperature only
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import make_cann
import make_hdf5
import make_overflow
import make_parity
import make_ranks
import make_reruns

HERE = Path(__file__).resolve().parent
VARIANTS = {  # sample → (variant of the golden run, variant of the target run)
    "msprobe_softmax": ("plain", "softmax"),
    "msprobe_clean": ("plain", "plain"),
    "msprobe_bfloat16": ("plain", "bfloat16"),
    "msprobe_extra_operator": ("plain", "extra"),
    "msprobe_uncaptured": ("plain", "uncaptured"),
    "msprobe_backward": ("plain", "backward"),
}

CANN = {"cann_fused_conv": "net/block_0/b/Conv2D", "cann_clean": ""}  # sample → operator that goes wrong


def run(variant: str, folder: str) -> None:
    """One training step of a two-block attention network, dumped with msprobe."""
    import numpy as np
    import torch
    import torch.nn.functional as F

    torch.manual_seed(0)
    torch.use_deterministic_algorithms(True)
    torch.set_num_threads(1)
    gelu = F.gelu  # taken before msprobe wraps it: such calls never reach a dump
    softmax, calls = F.softmax, [0]

    def wrong_softmax(scores, dim):
        calls[0] += 1
        return softmax(scores.bfloat16(), dim=dim).float() if calls[0] == 2 else softmax(scores, dim=dim)

    class Scaled(torch.autograd.Function):
        @staticmethod
        def forward(context, x):
            return x

        @staticmethod
        def backward(context, gradient):
            return torch.from_numpy(gradient.numpy() * np.float32(1.01))  # numpy: msprobe must not see an operator

    if variant == "softmax":
        F.softmax = wrong_softmax

    class Block(torch.nn.Module):
        def __init__(self, eps=1e-5):
            super().__init__()
            self.norm = torch.nn.LayerNorm(16, eps=eps)
            self.query, self.key, self.value = (torch.nn.Linear(16, 16) for _ in range(3))
            self.up, self.down = torch.nn.Linear(16, 32), torch.nn.Linear(32, 16)

        def forward(self, x, wrong):
            if wrong and variant == "extra":
                x = x * 1.0
            h = self.norm(x)
            scores = torch.matmul(self.query(h), self.key(h).transpose(1, 2)) * 0.25
            x = x + torch.matmul(F.softmax(scores, dim=-1), self.value(h))
            hidden = gelu(self.up(x), approximate="tanh" if wrong and variant == "uncaptured" else "none")
            if wrong and variant == "backward":
                hidden = Scaled.apply(hidden)
            return x + self.down(hidden)

    first, second = Block(), Block(eps=1e-2 if variant == "extra" else 1e-5)
    head = torch.nn.Linear(16, 4)
    model = torch.nn.ModuleList([first, second, head])
    x, labels = torch.randn(2, 8, 16), torch.randint(0, 4, (2,))

    configuration = Path(folder, "config.json")
    configuration.write_text(
        json.dumps({
            "task": "tensor", "dump_path": folder, "rank": [], "step": [], "level": "L1", "async_dump": False,
            "tensor": {"scope": [], "list": [], "data_mode": ["all"]},
        })
    )  # fmt: skip
    from msprobe.pytorch import PrecisionDebugger

    debugger = PrecisionDebugger(config_path=str(configuration))
    debugger.start(model)
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=variant == "bfloat16"):
        y = second(first(x, variant == "extra"), variant != "extra")
        loss = F.cross_entropy(head(y.mean(dim=1)), labels)
    loss.backward()
    debugger.stop()
    debugger.step()


def neutral(folder: Path) -> None:
    """Takes this machine's paths out of the JSON files."""
    for file in folder.glob("step*/*/*.json"):
        text = file.read_text()
        if file.name == "dump.json":
            top = json.loads(text)
            top["dump_data_dir"] = "./dump_tensor_data"
            text = json.dumps(top, indent=1)
        if file.name == "stack.json":
            top = json.loads(text)
            for value in top.values():
                own = [frame for frame in value[1] if "site-packages" not in frame]
                value[1] = [frame.replace(str(HERE), "/home/user") for frame in own]
            text = json.dumps(top, indent=1)
        file.write_text(text)


def two_ranks() -> None:
    """Both sides of msprobe_two_ranks."""
    for side in ("golden", "target"):
        with tempfile.TemporaryDirectory() as folder:
            make_ranks.run(folder, faulty=side == "target")
            neutral(Path(folder))
            place = HERE / "msprobe_two_ranks" / side
            shutil.rmtree(place, ignore_errors=True)
            for step in Path(folder).glob("step*"):
                shutil.copytree(step, place / step.name)


def main() -> None:
    if len(sys.argv) == 3:
        run(sys.argv[1], sys.argv[2])
        return
    for sample, fault in CANN.items():
        shutil.rmtree(HERE / sample, ignore_errors=True)
        make_cann.write_reference(HERE / sample / "golden")
        make_cann.write_device(HERE / sample / "target", fault)
    shutil.rmtree(HERE / "cann_fusion_pass", ignore_errors=True)
    make_cann.write_fusion(HERE / "cann_fusion_pass", "net/block_0/addnet/block_0/Relu")
    make_reruns.write(HERE / "rerun_scatter")
    make_parity.write(HERE / "parity_temperature")
    make_overflow.write(HERE / "overflow_exp")
    make_hdf5.write(HERE / "hdf5_convolution")
    if sys.argv[1:] == ["numpy"]:
        return
    two_ranks()
    for sample, variants in VARIANTS.items():
        for side, variant in zip(("golden", "target"), variants):
            with tempfile.TemporaryDirectory() as folder:
                subprocess.run([sys.executable, __file__, variant, folder], check=True, stdout=subprocess.DEVNULL)
                neutral(Path(folder))
                place = HERE / sample / side / "step0"
                shutil.rmtree(place, ignore_errors=True)
                shutil.copytree(Path(folder, "step0"), place)


if __name__ == "__main__":
    main()
