"""Runs of two ranks, gloo on loopback: gradients summed, a layer split in two, and two stages of a pipeline."""

from __future__ import annotations

import os
import tempfile
import traceback
from pathlib import Path
from typing import Any, Callable

import torch
import torch.distributed as dist
import torch.nn.functional as F
from plants import Planter
from runs import Run, autocast, computing, debugger, prepare_model
from torch import nn

RANKS = 2
WIDTH = 32


class Block(nn.Module):
    """Attention over a sequence and two layers behind it."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.query, self.key, self.value, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.norm1(x)
        scores = torch.matmul(self.query(h), self.key(h).transpose(-1, -2)) * WIDTH**-0.5
        x = x + self.out(torch.matmul(F.softmax(scores, dim=-1), self.value(h)))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Model(nn.Module):
    """Embedding, blocks and the head; a stage of a pipeline has a part of them."""

    def __init__(self, blocks: int = 2, embeds: bool = True, ends: bool = True) -> None:
        super().__init__()
        self.embedding = nn.Embedding(64, WIDTH) if embeds else None
        self.blocks = nn.ModuleList(Block() for _ in range(blocks))
        self.head = nn.Linear(WIDTH, 64) if ends else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.embedding(x) if self.embedding is not None else x
        for block in self.blocks:
            x = block(x)
        return self.head(x) if self.head is not None else x


def tokens(step: int, rank: int) -> torch.Tensor:
    return torch.randint(0, 64, (2, 8), generator=torch.Generator().manual_seed(7 + 2 * step + rank))


def loss_of(scores: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(scores[:, :-1].reshape(-1, 64), ids[:, 1:].reshape(-1))


class Collectives:
    """The collectives of a script, by number of the call in the step; one of them may be left out."""

    def __init__(self, planter: Planter) -> None:
        self.planter = planter
        self.count = 0

    def all_reduce(self, tensor: torch.Tensor) -> torch.Tensor:
        call, self.count = self.count, self.count + 1
        if self.planter.missing_collective != f"all_reduce.{call}":
            dist.all_reduce(tensor)
        return tensor


class _Summed(torch.autograd.Function):
    """Sums over the ranks on the way forward."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, collectives: Collectives) -> torch.Tensor:
        return collectives.all_reduce(x.clone())

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        return gradient, None


class _Split(torch.autograd.Function):
    """Sums the gradients of the ranks on the way back."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, collectives: Collectives) -> torch.Tensor:
        ctx.collectives = collectives
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        return ctx.collectives.all_reduce(gradient.contiguous().clone()), None


class ParallelLayers(nn.Module):
    """Two layers whose inner width is split over the ranks."""

    def __init__(self, rank: int, collectives: Collectives) -> None:
        super().__init__()
        own = torch.Generator().manual_seed(100 + rank)
        self.collectives = collectives
        self.norm = nn.LayerNorm(WIDTH)
        self.up, self.down = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH, bias=False)
        self.bias = nn.Parameter(torch.full((WIDTH,), 0.01))
        for layer in (self.up, self.down):
            layer.weight.data = torch.randn(layer.weight.shape, generator=own) * WIDTH**-0.5

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = F.gelu(self.up(_Split.apply(self.norm(x), self.collectives)))
        return x + (_Summed.apply(self.down(h), self.collectives) + self.bias)


class TensorParallel(nn.Module):
    def __init__(self, rank: int, collectives: Collectives) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(64, WIDTH), nn.Linear(WIDTH, 64)
        self.layers = nn.ModuleList(ParallelLayers(rank, collectives) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.embedding(x)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


Step = Callable[[int], None]


def data_parallel(rank: int, run: Run, planter: Planter) -> tuple[nn.Module, Step]:
    """Each rank has its own batch; the script sums the gradients."""
    model = prepare_model(Model(), run.setting)

    def step(number: int) -> None:
        ids = planter.prepare(model, {"ids": tokens(number, rank)})["ids"]
        collectives = Collectives(planter)
        with autocast(run.setting):
            loss = loss_of(model(ids), ids)
        loss.backward()
        for parameter in model.parameters():
            if parameter.grad is not None:
                collectives.all_reduce(parameter.grad)
                parameter.grad /= RANKS

    return model, step


def tensor_parallel(rank: int, run: Run, planter: Planter) -> tuple[nn.Module, Step]:
    """Both ranks have the same batch and half of the inner width each."""
    collectives = Collectives(planter)
    model = prepare_model(TensorParallel(rank, collectives), run.setting)

    def step(number: int) -> None:
        ids = planter.prepare(model, {"ids": tokens(number, 0)})["ids"]
        collectives.count = 0
        with autocast(run.setting):
            loss = loss_of(model(ids), ids)
        loss.backward()

    return model, step


def pipeline(rank: int, run: Run, planter: Planter) -> tuple[nn.Module, Step]:
    """Rank 0 sends activations to rank 1, which sends their gradient back."""
    model = prepare_model(Model(embeds=rank == 0, ends=rank == 1), run.setting)

    def first(ids: torch.Tensor) -> None:
        with autocast(run.setting):
            hidden = model(ids)
        dist.send(hidden.detach().clone(), 1)
        gradient = torch.empty_like(hidden)
        dist.recv(gradient, 1)
        hidden.backward(gradient)

    def second(ids: torch.Tensor) -> None:
        hidden = torch.empty(2, 8, WIDTH)
        dist.recv(hidden, 0)
        hidden.requires_grad_()
        with autocast(run.setting):
            loss = loss_of(model(hidden), ids)
        loss.backward()
        dist.send(hidden.grad, 0)

    def step(number: int) -> None:
        ids = planter.prepare(model, {"ids": tokens(number, 0)})["ids"]
        (first, second)[rank](ids)

    return model, step


PROGRAMS = {"data_parallel": data_parallel, "tensor_parallel": tensor_parallel, "pipeline": pipeline}


def _one_rank(rank: int, run: Run, folder: Path, meeting: str) -> None:
    with computing(run.setting):
        dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=RANKS)
        planter = Planter(run.fault, rank)
        model, step = PROGRAMS[run.network](rank, run, planter)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.1)
        planter.prepare_optimizer(optimizer)
        dist.barrier()
        probe = debugger(run.recording, folder, f"rank{rank}")
        for number in range(run.recording.steps):
            planter.step = number
            probe.start(model)
            step(number)
            probe.stop()
            probe.step()
            optimizer.step()
            optimizer.zero_grad()
        dist.barrier()
        dist.destroy_process_group()


def train(run: Run, folder: Path) -> None:
    """Forks one process a rank and waits for both."""
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    with tempfile.TemporaryDirectory() as place:
        children = []
        for rank in range(RANKS):
            child = os.fork()
            if child == 0:
                code = 1
                try:
                    _one_rank(rank, run, folder, os.path.join(place, "meeting"))
                    code = 0
                except BaseException:
                    traceback.print_exc()
                finally:
                    os._exit(code)
            children.append(child)
        codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    if any(codes):
        raise RuntimeError(f"ranks ended with {codes}")
