"""Cross-entropy over a vocabulary that is divided among GPUs."""

import torch
from torch import Tensor

from kareus.model.fused.dispatch import fused


def maxima(logits: Tensor) -> Tensor:
    """Return the largest logit of each token here, [..., rows of the vocabulary] to [...], fp32; one PyTorch kernel."""
    return logits.amax(-1).float()


@fused
def exponentials(logits: Tensor, maximum: Tensor, rows: Tensor, mine: Tensor) -> tuple[Tensor, Tensor]:
    """Return the sum of exp(logit - maximum) of each token, and the logit of its label, 0 where that is not here.

    Args:
        logits: [..., rows of the vocabulary].
        maximum: of each token, [...], fp32.
        rows: of the labels, [...].
        mine: whether a label is among this GPU's rows, [...].
    """
    return _exponentials(logits, maximum).sum(-1), _labelled(logits, rows, mine)


@fused
def mean_loss(total: Tensor, labelled: Tensor, maximum: Tensor) -> tuple[Tensor, Tensor]:
    """Return the mean cross-entropy over tokens and the log-sum-exp of each; one program on a GPU.

    Args:
        total: sum of exponentials over the whole vocabulary, [...], fp32.
        labelled: logit of the label, [...].
        maximum: largest logit, [...].
    """
    log_sum_exp = total.log() + maximum
    return (log_sum_exp - labelled).mean(), log_sum_exp


@fused
def cross_entropy(logits: Tensor, rows: Tensor, mine: Tensor) -> tuple[Tensor, Tensor]:
    """Return the mean cross-entropy and the log-sum-exp of each token, where one GPU has the whole vocabulary.

    Logits are read once; see `exponentials` for the arguments.
    """
    maximum = maxima(logits)
    log_sum_exp = _exponentials(logits, maximum).sum(-1).log() + maximum
    return (log_sum_exp - _labelled(logits, rows, mine)).mean(), log_sum_exp


@fused
def cross_entropy_backward_(logits: Tensor, log_sum_exp: Tensor, rows: Tensor, mine: Tensor, factor: Tensor) -> None:
    """Replace logits by the gradient of their cross-entropy, (softmax - 1 for the label) * factor.

    Args:
        logits: as in `exponentials`, changed in place; likewise `rows` and `mine`.
        log_sum_exp: of each token over the whole vocabulary, [...], fp32.
        rows: see `logits`.
        mine: see `logits`.
        factor: gradient of the loss over the number of tokens, fp32, [].
    """
    softmax = _exponentials(logits, log_sum_exp)
    softmax.scatter_add_(-1, rows.unsqueeze(-1), -mine.unsqueeze(-1).float())
    logits.copy_(softmax.mul_(factor))


def _exponentials(logits: Tensor, less: Tensor) -> Tensor:
    """Return exp(logits - less) in fp32, [..., vocabulary rows]; the copy is all the memory that it takes."""
    return logits.to(torch.float32, copy=True).sub_(less.unsqueeze(-1)).exp_()


def _labelled(logits: Tensor, rows: Tensor, mine: Tensor) -> Tensor:
    """Return the logit of each token's label, fp32; 0 where it is not here."""
    return logits.gather(-1, rows.unsqueeze(-1)).squeeze(-1).float() * mine
