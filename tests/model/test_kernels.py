"""The fused operators in Triton, without a GPU: what they compute, in its interpreter, and what its compiler makes."""

import ast
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

triton = pytest.importorskip("triton")
from triton.backends.compiler import GPUTarget  # noqa: E402
from triton.compiler import ASTSource  # noqa: E402

from kareus.model.communicators import loopback_kernel  # noqa: E402
from kareus.model.kernels import activations, embedding, layer_norms, loss, norms, rotary, sums  # noqa: E402

ROOT = Path(__file__).parent.parent.parent
BF16, FP32, IDS = "*bf16", "*fp32", "*i64"
FP32_NAMES = (
    *("scale", "mean", "sums", "query_scale", "key_scale", "cosine", "sine", "log_sum_exp", "maximum"),
    *("labelled", "factor"),
)
"""Arguments of kernels that are fp32 in all of them."""
KERNELS: dict[str, tuple[str, dict[str, Any], dict[str, str]]] = {
    "residual norm": ("_residual_norm", {"ADDS": True, "ROWS": norms.ROWS, "BLOCK": 4096}, {}),
    "its backward": (
        "_residual_norm_backward",
        {"CARRIES": True, "ROWS": norms.BACKWARD_ROWS, "STEP": norms.rows_at_once(4096), "BLOCK": 4096},
        {},
    ),
    "sums of programs": ("_add_rows", {"ROWS": 32, "COLUMNS": 64}, {"first": FP32, "second": FP32}),
    "swiglu": ("_swiglu", {"SPAN": activations.SPAN}, {}),
    "its gradient": ("_swiglu_backward", {"SPAN": activations.SPAN}, {}),
    "geglu": ("_geglu", {"KIND": "gelu-tanh", "SPAN": activations.SPAN}, {}),
    "geglu's gradient": ("_geglu_backward", {"KIND": "gelu", "SPAN": activations.SPAN}, {}),
    "exponentials": ("_exponentials", {"SPAN": 4096}, {"rows": IDS, "mine": "*i1", "total": FP32}),
    "log-sum-exp": ("_log_sum_exp", {"SPAN": 4096}, {"rows": IDS, "mine": "*i1", "result": FP32}),
    "mean loss": ("_mean_loss", {"SPAN": 4096}, {"total": FP32, "log_sum_exp": FP32, "loss": FP32}),
    "cross-entropy's gradient": ("_cross_entropy_backward", {"SPAN": 1024}, {"rows": IDS, "mine": "*i1"}),
    "embedding": ("_embed", {"ADDS": True, "SPAN": embedding.SPAN}, {"ids": IDS}),
    "layernorm": ("_residual_layer_norm", {"ADDS": True, "BIASED": True, "ROWS": norms.ROWS, "BLOCK": 4096}, {}),
    "layernorm's backward": (
        "_residual_layer_norm_backward",
        {
            "CARRIES": True,
            "BIASED": True,
            "ROWS": norms.BACKWARD_ROWS,
            "STEP": norms.rows_at_once(4096),
            "BLOCK": 4096,
        },
        {},
    ),
    "gelu": ("_activate", {"KIND": "gelu", "SPAN": activations.SPAN}, {}),
    "gelu's gradient": ("_activate_backward", {"KIND": "gelu-tanh", "SPAN": activations.SPAN}, {}),
    "gradient of positions": ("_add_over_sequences", {"SPAN": embedding.SPAN}, {"total": FP32}),
    "embedding's gradient": (
        "_embed_backward",
        {"ROWS": 8, "COLUMNS": 64},
        {"by_id": IDS, "places": IDS, "total": FP32},
    ),
}
MODULES = (activations, embedding, layer_norms, loss, norms, rotary, sums)
ROTATIONS = ("_rotate", "_rotate_backward")
POINTERS = ("stream", "update", "weight", "total", "normed", "gradient", "carried", "result", "qkv", "query", "key")
MORE_POINTERS = ("value", "bias", "added", "x", "query_weight", "key_weight", "gate_up", "logits")


def test_kernels_compute_what_eager_operations_do() -> None:
    paths = (ROOT, ROOT / "tests", ROOT / "benchmarks")
    environment = os.environ | {"TRITON_INTERPRET": "1", "PYTHONPATH": os.pathsep.join(map(str, paths))}
    subprocess.run([sys.executable, "-m", "helpers.interpreted"], env=environment, check=True)


def test_every_launch_says_how_products_and_sums_are_rounded() -> None:
    """Triton warns where it is not said, and its default changes from version to version."""
    launches = [
        call
        for module in (*MODULES, loopback_kernel)
        for call in ast.walk(ast.parse(Path(module.__file__).read_text()))
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Subscript)
    ]
    assert len(launches) >= len(KERNELS)
    silent = [call for call in launches if "**FMA" not in ast.unparse(call)]
    assert [ast.unparse(call.func) for call in silent] == []


def compiled(name: str, constants: dict[str, Any], own: dict[str, str], warps: int, capability: int) -> Any:
    """For sizes and addresses that 16 divides, as those of real models."""
    kernel = next(getattr(module, name) for module in MODULES if hasattr(module, name))
    types = dict.fromkeys((*POINTERS, *MORE_POINTERS), BF16) | dict.fromkeys(FP32_NAMES, FP32)
    types |= {"epsilon": "fp32"} | own | dict.fromkeys(constants, "constexpr")
    signature = {argument: types.get(argument, "i32") for argument in kernel.arg_names}
    aligned = [n for n, kind in enumerate(signature.values()) if kind.startswith("*") or kind == "i32"]
    attributes = {(n,): [["tt.divisibility", 16]] for n in aligned}
    source = ASTSource(fn=kernel, signature=signature, constexprs=constants, attrs=attributes)
    return triton.compile(source, target=GPUTarget("cuda", capability, 32), options={"num_warps": warps, **sums.FMA})


@pytest.mark.parametrize("capability", [80, 90], ids=["A100", "H100"])
@pytest.mark.parametrize("kernel", KERNELS)
def test_rows_are_moved_by_sixteen_bytes_a_thread(kernel: str, capability: int) -> None:
    name, constants, own = KERNELS[kernel]
    warps = {
        "_residual_norm": 8,
        "_residual_norm_backward": 16,
        "_residual_layer_norm": 8,
        "_residual_layer_norm_backward": 16,
        "_exponentials": 8,
        "_log_sum_exp": 8,
        "_mean_loss": 8,
    }.get(name, 4)
    assert "ld.global.v4.b32" in compiled(name, constants, own, warps, capability).asm["ptx"]


@pytest.mark.parametrize("capability", [80, 90], ids=["A100", "H100"])
@pytest.mark.parametrize("norms", [False, True])
@pytest.mark.parametrize("name", ROTATIONS)
def test_rotations_compile_and_move_whole_lines(name: str, norms: bool, capability: int) -> None:
    sizes = {"QUERIES": 4, "KEYS": 1, "HALF": 64, "POSITIONS": rotary.POSITIONS}
    constants = {"NORMS": norms, **sizes} | ({"APART": True} if name == "_rotate" else {})
    program = compiled(name, constants, {}, 1, capability)
    assert set(re.findall(r"st\.global\.(?:v\d\.)?b16", program.asm["ptx"])) == set()
