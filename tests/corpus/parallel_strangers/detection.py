"""A detector in training: windows of tokens, a decoder of queries, losses divided by the boxes of all ranks."""

from __future__ import annotations

from typing import Optional

import torch
import torch.nn.functional as F
from torch import nn

from tests.corpus.parallel_strangers.detection_layers import QUERIES, WIDTH, Block, Decoder, Merging, Part
from tests.corpus.parallel_strangers.regions import summed
from tests.corpus.parallel_strangers.world import Fault, Layout, Rank, figures_around_update

SIDE, PATCH, CLASSES = 16, 2, 5
GRID, SHIFT = SIDE // PATCH, 2
RATE, MOST, BOX_SHARE = 0.5, 0.5, 2.0
IN_STATISTICS = 2


class Detector(Part):
    def __init__(self, rank: Rank) -> None:
        super().__init__(rank, "top")
        self.own("patches", WIDTH, 3, PATCH, PATCH)
        self.own("positions", GRID, GRID, WIDTH, scale=0.5)
        shifts = (0, SHIFT if rank.settings.get("shifts") else 0)
        self.blocks = nn.ModuleList(Block(rank, f"blocks.{at}", shift) for at, shift in enumerate(shifts))
        self.merge, self.whole = Merging(rank), Block(rank, "whole", is_whole=True)
        self.decoder = Decoder(rank, (GRID // 2) ** 2)
        self.decoder_classes, self.decoder_boxes = Part(rank, "decoder.classes"), Part(rank, "decoder.boxes")
        self.decoder_classes.own_linear("out", CLASSES + 1, WIDTH)
        self.decoder_boxes.own_linear("out", 4, WIDTH)

    def forward(self, images: torch.Tensor, kept: Optional[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
        rank, sp = self.rank, self.rank.group("sp")
        with rank.at("patches"):
            x = F.conv2d(images, self.patches, stride=PATCH)
        x = x.permute(0, 2, 3, 1)
        first = 0 if rank.hit("positions_local") else sp.number * x.shape[1]
        with rank.at("positions"):
            x = x + self.positions[first : first + x.shape[1]]
        for block in self.blocks:
            x = block(x)
        x = self.decoder(self.whole(self.merge(x)), kept)
        logits, boxes = self.decoder_classes.linear(x, "out"), self.decoder_boxes.linear(x, "out")
        with rank.at("boxes"):
            return logits, boxes.sigmoid()


class Run:
    def __init__(self, rank: Rank) -> None:
        self.rank, self.model = rank, Detector(rank)
        count, dp, sp = rank.settings["images"], rank.group("dp"), rank.group("sp")
        shares = [count // dp.size + (number < count % dp.size) for number in range(dp.size)]
        first = 0 if rank.hit("same_images") else sum(shares[: dp.number])
        mine = slice(first, first + shares[dp.number])
        rows = SIDE // sp.size
        top = 0 if rank.hit("rows_of_another") else sp.number * rows
        self.images = rank.drawn("images", count, 3, SIDE, SIDE, scale=1.0)[mine, :, top : top + rows].contiguous()
        labels = rank.integers("labels", CLASSES + 1, count, QUERIES)
        boxes = torch.sigmoid(rank.drawn("boxes", count, QUERIES, 4, scale=1.0))
        if rank.hit("labels_shifted"):
            labels = torch.roll(labels, 1, 1)
        self.labels, self.boxes, self.kept = labels[mine], boxes[mine], None
        if rank.settings.get("dropout"):
            kept = (rank.drawn("kept", count, QUERIES, WIDTH, scale=1.0) > -0.67).to(rank.dtype)
            self.kept = kept[: shares[dp.number]] if rank.hit("dropout_equal") else kept[mine]

    def _loss(self) -> torch.Tensor:
        rank, dp = self.rank, self.rank.group("dp")
        logits, boxes = self.model(self.images, self.kept)
        has_box = self.labels < CLASSES
        count = has_box.sum().to(rank.dtype).reshape(1)
        if dp.size > 1 and not rank.hit("boxes_local"):
            count = summed(count, dp)
        elif rank.hit("boxes_local"):
            count = count * dp.size
        with rank.at("loss.count"):
            count = torch.clamp(count / dp.size, min=1)
        weight = torch.ones(CLASSES + 1, dtype=rank.dtype)
        weight[-1] = 0.1
        with rank.at("loss.classes"):
            of_classes = F.cross_entropy(logits.transpose(1, 2), self.labels, weight, reduction="sum") / count
        with rank.at("loss.l1"):
            apart = F.l1_loss(boxes, self.boxes, reduction="none")
        with rank.at("loss.boxes"):
            of_boxes = (apart * has_box.unsqueeze(-1)).sum() / count
        with rank.at("loss"):
            return (of_classes + of_boxes * BOX_SHARE).sum()

    def _reduced(self, path: str, grad: torch.Tensor) -> torch.Tensor:
        """Averaged over ranks of images; summed over ranks of rows, unless all ranks computed the same."""
        rank, dp, sp = self.rank, self.rank.group("dp"), self.rank.group("sp")
        if rank.hit("not_summed", path.partition(".")[0]):
            return grad
        if dp.size > 1:
            grad = summed(grad, dp)
            grad = grad if rank.hit("undivided") else grad / dp.size
        if sp.size > 1 and (not path.startswith("decoder.") or path.startswith("decoder.memory")):
            grad = summed(grad, sp)
        return grad

    def step(self) -> None:
        rank, tp = self.rank, self.rank.group("tp")
        loss = self._loss()
        self.loss = float(loss.detach())
        loss.backward()
        with torch.no_grad():
            grads = [(one, self._reduced(one.path, one.grad)) for one in self.model.parameters()]
            split, copies = [], []
            for one, grad in grads:
                with rank.at(f"square.{one.path}"):
                    (split if one.is_split else copies).append(grad.square().sum())
            with rank.at("sum_of_split_squares"):
                total = torch.stack(split).sum()
            if tp.size > 1 and not rank.hit("norm_local"):
                total = summed(total, tp)
            with rank.at("total_norm"):
                norm = torch.sqrt(total + torch.stack(copies).sum())
            self.norm = float(norm)
            factor = torch.clamp(MOST / (norm + 1e-6), max=1.0)
            for one, grad in grads:
                with rank.at(f"clip.{one.path}"):
                    grad = grad * factor
                with rank.at(f"update.{one.path}"):
                    one.data.copy_(one.data - grad * RATE)
                one.grad = None

    def figures(self) -> list[float]:
        return figures_around_update(self)


_BATCHES = (
    Fault("boxes_local", ("loss.count", "loss.classes", "loss.boxes")),
    Fault("undivided", ("square.*", "clip.*", "sum_of_split_squares")),
    Fault("mask_missing@blocks.1", ("blocks.1.masked", "blocks.1.softmax"), 1),
    Fault("dropout_equal", ("decoder.dropout",), 1),
    Fault("same_images", ("patches",), 1),
    Fault("stale@blocks.0.fc1_weight", ("blocks.0.fc1",), 1),
    Fault("other_eps@merge.norm", ("merge.norm",), 0),
    Fault("not_summed@decoder", ("square.decoder.*", "clip.decoder.*")),
)
_HEADS = (
    Fault("not_reduced@blocks.1.fc2", ("blocks.1.out", "blocks.1.fc2")),
    Fault("bias_everywhere@blocks.0.proj", ("blocks.0.proj", "blocks.0.attended")),
    Fault("wrong_shard@blocks.1.table", ("blocks.1.biased",), 1),
    Fault("backward_not_reduced@whole.mlp", ("whole.norm2:backward",)),
    Fault("not_by_blocks@blocks.0.qkv", ("blocks.0.qkv", "blocks.0.scores")),
    Fault("norm_local", ("sum_of_split_squares", "total_norm")),
    Fault("coarse@whole.fc1", ("whole.fc1",), 1),
    Fault("labels_shifted", ("loss.classes",), 1),
)
_ROWS = (
    Fault("heads_order@whole", ("whole.attention", "whole.proj")),
    Fault("positions_local", ("positions",), 1),
    Fault("not_summed@blocks", ("square.blocks.*", "clip.blocks.*")),
    Fault("memory_rolled", ("decoder.memory", "decoder.placed", "decoder.v")),
    Fault("summed_again", ("decoder.memory:backward",)),
    Fault("coarse@blocks.1.softmax", ("blocks.1.softmax",), 0),
    Fault("rows_of_another", ("patches",), 1),
    Fault("stale@whole.qkv_weight", ("whole.qkv",), 1),
)
LAYOUTS = {
    "dp2_uneven": Layout({"dp": 2}, {"images": 5, "shifts": True, "dropout": True, "seed": 51}, _BATCHES),
    "tp2": Layout({"tp": 2}, {"images": 2, "shifts": True, "seed": 52}, _HEADS),
    "ulysses2": Layout({"sp": 2}, {"images": 2, "seed": 53}, _ROWS),
}
