"""Records of tokens, by the names of tensors: ids, positions, masks, lengths, places of a cache.

Engines pass these records to attention as arguments, or save them as tensors of their own: SGLang's dumper as
`input_ids`, `positions`, `seq_lens` and `rids`, scripts as `attention_mask.pt` beside the outputs of modules. The name
is the last word of the slot or of the label, or that of an operator that has one tensor and reads none.
"""

from __future__ import annotations

import re
from typing import Iterator, NamedTuple, Optional

from npucmp.model import Operator, TensorRef
from npucmp.model.dtypes import lookup

IDS, POSITIONS, MASK, TABLE, SLOTS, LAYOUT = "ids", "positions", "mask", "table", "slots", "layout"
_ENDING = r"(?:_?(?:cpu|gpu|npu|tensor|list|host|device|full|q|k|kv|int32|int64|[0-9]+))*"
_NAMES = {  # definition: names of transformers, vLLM, vLLM-Ascend, SGLang, Megatron and flash attention
    IDS: r"(?:input_?ids?|input_tokens|token_ids|decoder_input_ids)",
    POSITIONS: r"(?:positions|position_ids?|pos_ids|cache_position)",
    MASK: r"(?:\w*(?:attention|atten|attn|padding|pad)_mask)",
    LAYOUT: r"(?:cu_?seq_?lens?|cum_seq_lens?|query_start_loc|seq_start_loc|(?:\w+_)?seq_?lens?|(?:\w+_)?seqlens?|"
    r"query_lens?|context_lens?|prefix_lens?|(?:actual_)?seq_lengths?|sequence_lengths?|actual_seq_qlen|max_seqlen|"
    r"kv_indices|kv_indptr|qo_indptr|kv_last_page_len|cache_seqlens|req_pool_indices|req_to_token|rids?|req_ids|request_ids|"
    r"seq_ids|num_tokens|logits_indices|sample_indices)",
    TABLE: r"(?:block_tables?|page_tables?|req_to_page)",
    SLOTS: r"(?:slot_mapping|slot_indices|out_cache_loc)",
}  # fmt: skip
_PATTERNS = {role: re.compile(rf"{names}{_ENDING}", re.IGNORECASE) for role, names in _NAMES.items()}


class TokenRecord(NamedTuple):
    """The role of a record. `is_saved`: it stands alone, as the output of an operator that only saves it."""

    role: str
    is_saved: bool = False


def record_of(operator: Operator, tensor: TensorRef) -> Optional[TokenRecord]:
    """Return the record of tokens that a tensor is; None for any other one."""
    kind = lookup(tensor.dtype)
    if kind is None or not (kind.kind in "iub" or len(tensor.shape) == 4):
        return None
    is_saved = tensor.slot.startswith("output") and len(operator.tensors) == 1
    if not is_saved and not tensor.slot.startswith("input"):
        return None
    for word in _words(operator, tensor, is_saved):
        for role, pattern in _PATTERNS.items():
            if pattern.fullmatch(word):
                return TokenRecord(role, is_saved)
    return None


def is_layout(name: str) -> bool:
    """Whether an argument of this name says where requests stand."""
    return _PATTERNS[LAYOUT].fullmatch(name) is not None


def records_layout(operator: Optional[Operator], tensor: Optional[TensorRef]) -> bool:
    """Whether a tensor records where the tokens of its own run stand: positions, masks, lengths, places of a cache."""
    record = record_of(operator, tensor) if operator is not None and tensor is not None else None
    return record is not None and record.role != IDS


def _words(operator: Operator, tensor: TensorRef, is_saved: bool) -> Iterator[str]:
    """Yield the words that may name a tensor."""
    for name in (tensor.slot.partition(":")[2], tensor.label, operator.name if is_saved else ""):
        words = [word for word in re.split(r"[./: ]", name) if word and not word.isdecimal()]
        yield from words[-1:]
