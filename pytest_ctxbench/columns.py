"""The one file that names the columns of runs_raw.csv, matrix.csv and effects.csv (design 8)."""

from __future__ import annotations

__all__ = ["EFFECTS", "MATRIX", "MATRIX_KEY", "RUNS_RAW", "RUNS_RAW_EXTRA"]

#: In the contract's order.
_RUNS_RAW_CONTRACT = (
    "task", "model", "effort", "provider", "condition", "run", "correctness", "outcome", "cost_usd",
    "cost_per_correct", "set_recall", "set_precision", "set_f1", "overlap_at_50", "rank_corr",
    "set_tolerated_boundary", "status_accuracy", "eligibility_accuracy", "eligibility_flag_accuracy",
    "eligibility_reason_accuracy", "trend_accuracy", "sessions_accuracy", "field_presence_ok",
    "poor_health_filter_ok", "sort_order_ok", "rows_returned", "rows_written", "accounts_written",
    "action_precision", "action_recall", "action_f1", "correct_accounts", "missed_accounts", "unauthorized_rows",
    "unauthorized_accounts", "duplicate_rows", "reason_accuracy", "write_target_ok", "offtarget_write_attempts",
    "offtarget_rows_landed", "offtarget_tables", "source_tables_changed", "source_integrity_checked",
    "uncached_input", "cached_input", "output_tokens", "reasoning_tokens", "total_tokens", "reasoning_mode",
    "thinking_chars", "temperature_requested", "temperature_applied", "turn_cap", "wall_s", "model_time_s",
    "mcp_time_s", "tool_calls", "turns", "hit_turn_cap", "stop_reason", "error", "norm_time_s",
    "search_context_calls", "search_context_s", "mcp_probe_ms", "model_retries", "model_retry_backoff_s",
    "mcp_retries",
)  # fmt: skip

#: Ours, after the contract's.
RUNS_RAW_EXTRA = (
    "success", "failure", "failure_detail", "error_class", "endpoint", "label", "developer", "tier", "reference",
    "resolved_model", "cache_write_tokens", "max_tokens_applied", "attempt", "answer_flags", "started_at",
    "usage_incomplete", "earlier_attempts_cost_usd",
    # how the run used search_context (adoption)
    "search_context_first_turn", "search_context_before_query", "entries_returned", "entries_used",
    "entries_returned_names", "entries_used_names",
    # what was sent, what was served, and whether the price is the published one
    "effort_applied", "served_tier", "price_verified_live",
)  # fmt: skip

RUNS_RAW = _RUNS_RAW_CONTRACT + RUNS_RAW_EXTRA

MATRIX_KEY = ("task", "model", "effort", "provider", "condition")

MATRIX = (
    *MATRIX_KEY, "runs", "correctness_med", "cost_med", "cost_per_correct", "cost_med_per_1k_q", "tokens_med",
    "reasoning_med", "wall_med", "norm_time_med", "tok_per_s", "calls_med", "turns_med", "correctness_range",
    "tok_var_pct", "success_rate", "bimodal", "cost_total", "cost_per_success", "search_context_calls_med",
    "search_context_s_med", "mcp_probe_ms_med", "retry_backoff_s_total", "turn_cap_rate", "solved_rate",
    "wrong_rate", "timeout_rate", "overlap_med", "set_f1_med", "status_med", "rank_corr_med", "elig_med",
    "trend_med", "clean_rate", "unsafe_rate", "sloppy_rate", "no_write_rate", "wrong_set_rate", "action_f1_med",
    "action_precision_med", "action_recall_med", "unauthorized_med", "unauthorized_max", "unauthorized_total",
    "duplicate_med", "reason_acc_med", "rows_written_med", "write_target_ok_rate", "offtarget_attempts_med",
    "offtarget_rows_landed_total",
)  # fmt: skip

EFFECTS = (
    "scope", "task", "model", "effort", "provider", "reference", "from_condition", "to_condition", "metric",
    "statistic", "cells", "n_from", "n_to", "value_from", "value_to", "difference", "low", "high", "method", "p_value",
    "p_method", "p_adjusted", "verdict", "missing_from", "missing_to", "errors_from", "errors_to", "worst_from",
    "best_from", "worst_to", "best_to", "bound_low", "bound_high",
)  # fmt: skip
