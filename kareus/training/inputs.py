"""Inputs of a training other than its workload, checked before ranks are started and without importing torch.

Ranks take seconds to import it, and would then each find the same file missing. They read the files themselves later.
"""

from pathlib import Path

from kareus.model.weight_files import check_weight_files
from kareus.training.checkpoint_files import iterations_in
from kareus.training.data.text import text_files
from kareus.training.data.tokenizers import check_tokenizer
from kareus.training.data.tokens import open_tokens
from kareus.training.metrics import check_metrics
from kareus.training.settings import TrainingSettings


def check_inputs(settings: TrainingSettings) -> None:
    """Check that data, tokenizer and first weights are there, and the package that writes metrics.

    A training that has checkpoints goes on from them and does not read its first weights again.

    Raises:
        KareusError: one is missing, or is something else.
    """
    if settings.data != "synthetic":
        _check_data(Path(settings.data), settings.tokenizer)
    if settings.metrics is not None:
        check_metrics(settings.metrics)
    if settings.weights is not None and not iterations_in(settings.output / "checkpoints"):
        check_weight_files(settings.weights)


def _check_data(path: Path, tokenizer: str) -> None:
    if path.suffix == ".bin":
        open_tokens(path, check_content=False)
        return
    text_files([path])
    check_tokenizer(tokenizer)
