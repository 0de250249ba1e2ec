"""The names under which engines and trainers write log-probabilities, tokens and masks.

Source: public sources of verl (trainer/ppo, utils/debug/metrics.py), slime and miles (utils/types.py, ray/rollout.py,
utils/train_dump_utils.py), SGLang (meta_info), vLLM and the OpenAI interface (logprobs), TRL (scripts/vllm_serve.py),
OpenRLHF (agents).
"""

from __future__ import annotations

from typing import Any, Iterable, Mapping, Optional

ROLLOUT, TRAINER = "rollout", "trainer"
_ROLLOUT = ("rollout_log_probs", "rollout_logprobs", "rollout_log_prob", "output_token_logprobs", "sampling_logprobs")
_TRAINER = ("old_log_probs", "old_log_prob", "old_logprobs", "actor_log_probs", "train_log_probs", "trainer_log_probs")
OF_EITHER_SIDE = ("log_probs", "logprobs", "log_prob", "token_logprobs", "cumulative_logprob")
LOG_PROBS = {ROLLOUT: (*_ROLLOUT, *OF_EITHER_SIDE, *_TRAINER), TRAINER: (*_TRAINER, *OF_EITHER_SIDE, *_ROLLOUT)}
OF_ONE_SIDE = {ROLLOUT: frozenset(_ROLLOUT), TRAINER: frozenset(_TRAINER)}  # names that only this side writes
MASKS = ("response_mask", "loss_mask", "loss_masks", "completion_mask", "action_mask", "attention_mask")
RANGES = "action_ranges"  # (start, end) of what was sampled in a whole sequence
IDS = (
    "responses", "response_ids", "output_ids", "token_ids", "completion_ids", "tokens", "observation_tokens",
    "input_ids",
)  # fmt: skip
IDS_OF_LISTS = "logprob_token_ids"  # of log-probabilities that have a list for each position
KEYS = ("sample_indices", "sample_index", "index", "request_id", "custom_id", "rid", "id")
LENGTHS = ("response_length", "response_lengths", "completion_tokens", "response_len")
VALID = ("valid", "rollout_probs_diff_valid", "training/rollout_probs_diff_valid")
TOP_IDS = ("top_ids", "topk_ids", "top_token_ids")
TOP_LOG_PROBS = ("top_log_probs", "topk_log_probs", "top_logprobs", "topk_logprobs")
EXPERTS = ("routed_experts", "rollout_routed_experts")  # chosen by routers: (positions, layers, k)
STEPS = ("step", "global_step", "global_steps", "rollout_id", "iteration")
NEEDED = frozenset((*LOG_PROBS[ROLLOUT], *MASKS, *IDS))  # a file without one of them that it has is misread
KNOWN = frozenset((*NEEDED, *KEYS, *LENGTHS, *VALID, *TOP_IDS, *TOP_LOG_PROBS, *EXPERTS, *STEPS, RANGES, IDS_OF_LISTS))
WRAPPERS = ("rollout_data", "batch", "tensors", "_tensordict", "data", "samples", "meta_info")  # of a batch
METRIC = "rollout_probs_diff"  # of verl's metrics, which hold no token


def first_of(record: Mapping[str, Any], names: Iterable[str]) -> Optional[Any]:
    """Return the value of the first name that a record has and that is not null; None without any."""
    return next((record[name] for name in names if record.get(name) is not None), None)


def name_of(record: Mapping[str, Any], names: Iterable[str]) -> str:
    """Return the first name that a record has and whose value is not null, "" without any."""
    return next((name for name in names if record.get(name) is not None), "")
