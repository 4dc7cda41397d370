"""Coefficients that measured kernels tell, with their expectations and the bounds within which they make sense."""

from kareus.gpu_model.declarations import FitData, FitPrior


def _prior(value: float, lower: float, upper: float, spread: float) -> FitPrior:
    return FitPrior(FitData.KERNELS, value, lower, upper, spread)


GEMM_PRIORS = {
    "gemm_efficiency": _prior(0.9, 0.6, 1.0, 0.08),
    "kernel_overhead_s": _prior(2.2e-6, 1e-6, 1e-5, 0.5),
    "hbm_efficiency": _prior(0.83, 0.6, 0.95, 0.08),
    "gemm_epilogue_s": _prior(5e-11, 1e-12, 1e-9, 1.0),
    "gemm_step_s": _prior(7e-8, 5e-9, 1e-6, 0.5),
    "tile_feed_gb_per_s": _prior(4e4, 3e3, 1e6, 0.7),
    "gemm_split_s": _prior(2.4e-6, 2e-7, 2e-5, 0.7),
    "l2_speedup": _prior(1.7, 1.0, 5.0, 0.4),
    "l2_share": _prior(0.7, 0.2, 1.0, 0.3),
    "gemm_j_per_flop": _prior(0.65e-12, 0.2e-12, 2.5e-12, 0.5),
    "hbm_j_per_byte": _prior(110e-12, 60e-12, 160e-12, 0.1),
    "clock_power_w": _prior(200.0, 50.0, 500.0, 0.5),
    "voltage_slope": _prior(1.1, 0.4, 2.4, 0.3),
    "limiter_s": _prior(0.045, 0.005, 1.0, 0.7),
}
"""HBM's energy is that of measurements of bandwidth alone, 110 to 130 pJ a byte."""
FP8_PRIORS = {
    "fp8_efficiency": _prior(0.85, 0.5, 1.0, 0.15),
    "fp8_step_s": _prior(1.5e-7, 5e-9, 2e-6, 0.7),
    "fp8_misalignment": _prior(1.2, 1.0, 2.0, 0.2),
    "cast_row_s": _prior(3e-9, 1e-11, 3e-8, 2.0),
    "cast_efficiency": _prior(0.5, 0.1, 1.0, 0.5),
    "cast_s": _prior(4e-6, 5e-7, 3e-5, 0.7),
    "cast_waiting_share": _prior(0.5, 0.1, 1.0, 0.7),
    "fp8_energy_share": _prior(0.6, 0.3, 1.0, 0.2),
}
ATTENTION_PRIORS = {
    "attention_forward_efficiency": _prior(0.8, 0.3, 1.0, 1.0),
    "softmax_s": _prior(1e-11, 1e-13, 1e-9, 1.0),
    "attention_tile_s": _prior(1e-6, 1e-8, 1e-5, 1.0),
    "attention_tail": _prior(0.3, 0.01, 1.0, 1.0),
    "attention_step_s": _prior(1e-6, 1e-8, 1e-5, 1.0),
    "attention_split_s": _prior(1e-3, 5e-7, 1e-2, 3.0),
    "attention_s": _prior(7e-6, 5e-7, 5e-5, 0.7),
    "wide_head_slowdown": _prior(1.0, 0.5, 2.0, 0.3),
    "widest_head_slowdown": _prior(1.5, 0.5, 5.0, 0.5),
    "attention_j_per_flop": _prior(0.65e-12, 0.2e-12, 4e-12, 0.5),
    "softmax_j": _prior(3e-11, 1e-12, 1e-9, 1.0),
}
EXPERT_PRIORS = {
    "grouped_efficiency": _prior(0.8, 0.3, 1.0, 0.2),
    "grouped_misalignment": _prior(5.0, 1.0, 100.0, 1.0),
    "single_loads_w": _prior(200.0, 1.0, 1000.0, 0.7),
    "grouped_step_s": _prior(3e-7, 5e-9, 3e-6, 0.7),
    "grouped_energy_share": _prior(1.0, 0.2, 4.0, 0.3),
    "routing_energy_share": _prior(1.5, 0.3, 10.0, 0.5),
    "routing_efficiency": _prior(0.6, 0.1, 1.0, 0.3),
    "routing_copy_s": _prior(1e-9, 1e-11, 1e-7, 1.0),
    "routing_s": _prior(3e-5, 1e-6, 3e-4, 0.7),
}
FP8_EXPERT_PRIORS = {
    "grouped_fp8_efficiency": _prior(0.9, 0.3, 2.0, 0.3),
    "grouped_fp8_step_s": _prior(3e-7, 5e-9, 3e-6, 0.7),
    "grouped_fp8_energy_share": _prior(1.0, 0.2, 4.0, 0.3),
    "grouped_fp8_misalignment": _prior(20.0, 1.0, 100.0, 1.0),
}
BLOCKWISE_EXPERT_PRIORS = {
    "grouped_blockwise_efficiency": _prior(0.5, 0.1, 2.0, 0.5),
    "grouped_blockwise_step_s": _prior(3e-7, 5e-9, 3e-6, 0.7),
    "grouped_blockwise_energy_share": _prior(1.0, 0.2, 4.0, 0.3),
}
COLLECTIVE_PRIORS = {
    "collective_latency_s": _prior(2e-5, 2e-6, 6e-5, 0.7),
    "collective_step_s": _prior(8e-7, 5e-8, 5e-6, 0.7),
    "bus_efficiency": _prior(0.9, 0.5, 1.0, 0.1),
    "own_shard_copy": _prior(0.35, 0.01, 2.0, 0.7),
    "fast_protocol_latency": _prior(0.25, 0.02, 0.99, 0.7),
    "fast_protocol_bandwidth": _prior(0.3, 0.02, 0.9, 0.7),
    "middle_protocol_latency": _prior(0.4, 0.05, 0.99, 0.7),
    "middle_protocol_bandwidth": _prior(0.6, 0.1, 0.98, 0.4),
    "switch_efficiency": _prior(0.6, 0.2, 1.0, 0.3),
    "switch_latency_s": _prior(4e-5, 5e-6, 3e-4, 0.7),
}
