"""Strategies of the search and their hyperparameters: the records of Hydra group `search`, and what the stage reads."""

from dataclasses import dataclass
from enum import StrEnum

from kareus.artifacts.ranges import not_negative, share, within
from kareus.errors import ConfigError
from kareus.gpu_model.gpu import Gpu
from kareus.profile.config import MeasurementProtocol
from kareus.schedule.config import MOST_CANDIDATES
from kareus.testbed.config import TestbedConfig

MOST_MARGIN = 1000


class Strategy(StrEnum):
    """How candidates of a partition are chosen."""

    PAPER = "paper"
    RANDOM = "random"
    EXHAUSTIVE = "exhaustive"
    INFORMED = "informed"


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleSizes:
    """Budget of a search for one class of partition."""

    initial: int
    """Random candidates measured first (N_init)."""
    max_rounds: int
    """Most rounds after those (B_max)."""
    batch: int
    """Candidates of a round (k)."""

    def __post_init__(self) -> None:
        within(self, 1, MOST_CANDIDATES, "candidates", "initial", "batch")
        within(self, 0, MOST_CANDIDATES, "rounds", "max_rounds")


@dataclass(frozen=True, slots=True, kw_only=True)
class PaperSearch:
    """Strategy `paper` and its hyperparameters (paper, appendix on MBO hyperparameters), or a baseline."""

    strategy: Strategy
    """`paper`, or a baseline: `random`, `exhaustive`."""
    small: SampleSizes
    """Partitions with one operator."""
    medium: SampleSizes
    """Partitions with two or three operators."""
    large: SampleSizes
    """Partitions with more."""
    total_energy_share: float
    """Share of a batch that the total-energy pass picks; what the three passes leave is exploration."""
    dynamic_energy_share: float
    """Share of a batch that the dynamic-energy pass picks."""
    static_energy_share: float
    """Share of a batch that the static-energy pass picks."""
    ensemble_size: int
    """Number of surrogates whose spread is the uncertainty."""
    bootstrap_fraction: float
    """Share of the measurements that each surrogate of the ensemble is trained on."""
    max_depth: int
    """Depth of a tree of XGBoost."""
    learning_rate: float
    """Step size of XGBoost (eta)."""
    boost_rounds: int
    """Number of trees of a surrogate."""
    reference_margin: float
    """Reference point of the hypervolume, as a multiple of the worst observation."""
    stopping_window: int
    """Rounds averaged by the stopping rule (R)."""
    stopping_improvement: float
    """Mean relative improvement of the hypervolume below which a search ends (epsilon)."""

    def __post_init__(self) -> None:
        if self.strategy is Strategy.INFORMED:
            raise ConfigError("strategy=informed: has other hyperparameters than these; choose it by search=informed.")
        not_negative(self, "total_energy_share", "dynamic_energy_share", "static_energy_share", "stopping_improvement")
        shares = self.total_energy_share + self.dynamic_energy_share + self.static_energy_share
        if shares > 1:
            raise ConfigError(f"pass shares add up to {shares}: must be at most 1; the rest is exploration.")
        share(self, "bootstrap_fraction")
        within(self, 1, 1000, "surrogates", "ensemble_size")
        within(self, 1, 100, "levels of a tree", "max_depth")
        within(self, 1e-6, 1, "share of a step", "learning_rate")
        within(self, 1, 100_000, "rounds", "boost_rounds", "stopping_window")
        within(self, 0, 1, "share of the hypervolume", "stopping_improvement")
        if self.reference_margin < 1:
            raise ConfigError(
                f"reference_margin={self.reference_margin}: must be at least 1, so that the worst point "
                "lies within the reference point."
            )
        within(self, 1, MOST_MARGIN, "times the worst point", "reference_margin")


@dataclass(frozen=True, slots=True, kw_only=True)
class InformedSearch:
    """Strategy `informed` and its hyperparameters (docs/internals/search.md)."""

    strategy: Strategy
    """`informed`."""
    draws: int
    """Number of GPUs that the prior is estimated from: draws of the GPU model's coefficients."""
    samples: int
    """Number of joint samples of the posterior over which improvements are averaged."""
    plausible: int
    """Largest number of candidates that are sampled in a round."""
    initial: int
    """Number of candidates that are measured first, chosen by the prior and by times; each is measured twice, which
    tells the noise."""
    batch: int
    """Largest number of candidates measured in a later round."""
    picks: int
    """Number of candidates that a round picks by expected hypervolume improvement, to time or to measure them."""
    doubtful: int
    """Number of further time-only measurements of a round: candidates of the least certain time."""
    judged: int
    """Number of latest time-only measurements over which the calibration error is taken before a search ends."""
    surprise: float
    """Calibration error (mean square of standardised errors of predicted times) above which a search does not end."""
    most_looks: int
    """Number of time-only measurements after which a search takes no more; the last round may go beyond it."""
    most: int
    """Number of measurements after which a search ends in any case."""
    enough: float
    """Share of the hypervolume: a search ends if all picks of a round together are predicted to add less."""
    noise: float
    """Relative standard deviation that is presumed of one measured time or power, until repeats show more."""
    reference_margin: float
    """Reference point of the hypervolume, as a multiple of the frontier's maxima."""

    def __post_init__(self) -> None:
        if self.strategy is not Strategy.INFORMED:
            raise ConfigError(
                f"strategy={self.strategy}: has other hyperparameters than these; choose it by search={self.strategy}."
            )
        within(self, 1, 10_000, "draws", "draws", "samples")
        within(self, 1, MOST_CANDIDATES, "candidates", "plausible", "initial", "batch", "picks", "most")
        within(self, 1, MOST_CANDIDATES, "looks", "judged", "most_looks")
        within(self, 0, MOST_CANDIDATES, "looks", "doubtful")
        within(self, 1e-6, 1e6, "mean square of standardised errors", "surprise")
        within(self, 1e-6, 1, "relative standard deviation", "noise")
        share(self, "enough")
        if self.reference_margin <= 1:
            raise ConfigError(
                f"reference_margin={self.reference_margin}: must be greater than 1, to lie beyond the frontier."
            )
        within(self, 1, MOST_MARGIN, "times the frontier's maxima", "reference_margin")


SearchConfig = PaperSearch | InformedSearch


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchSlice:
    """The part of the configuration that searching a partition reads."""

    gpu: Gpu
    testbed: TestbedConfig
    protocol: MeasurementProtocol
    search: SearchConfig
    seed: int
