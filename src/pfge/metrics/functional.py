"""How good probabilities are: every metric maps (probabilities [N, C], targets [N]) to a float.

Each is a method of `Scores`, which are computed once for all of them.
"""

from torch import Tensor

from pfge.metrics.reliability import Reliability
from pfge.metrics.scores import score_examples


def accuracy(probabilities: Tensor, targets: Tensor) -> float:
    """Return the share of examples whose most probable class is the target.

    Args:
        probabilities: [N, C], each row summing to one.
        targets: The true class of each example, [N].

    Example:
        >>> import torch
        >>> from pfge.metrics import accuracy
        >>> probabilities = torch.tensor([[0.8, 0.2], [0.4, 0.6]])
        >>> accuracy(probabilities, torch.tensor([0, 0]))
        0.5
    """
    return score_examples(probabilities, targets).accuracy()


def negative_log_likelihood(probabilities: Tensor, targets: Tensor) -> float:
    """Return the negative log-likelihood of the targets in nats, the mean over examples.

        NLL = (1 / N) * sum over n of -log p_n[target_n]

    A p below the smallest normal float32 counts as that, so that a rounded zero does not make it infinite.

    Args:
        probabilities: [N, C], each row summing to one.
        targets: The true class of each example, [N].

    References:
        Good, "Rational Decisions", Journal of the Royal Statistical Society B, 1952.

    Example:
        >>> import torch
        >>> from pfge.metrics import negative_log_likelihood
        >>> probabilities = torch.tensor([[0.5, 0.5], [0.25, 0.75]])
        >>> round(negative_log_likelihood(probabilities, torch.tensor([0, 0])), 4)  # 1.5 * log(2)
        1.0397
    """
    return score_examples(probabilities, targets).negative_log_likelihood()


def brier_score(probabilities: Tensor, targets: Tensor) -> float:
    """Return the mean over examples of the squared distance to the one-hot target, from 0 to 2.

        Brier = (1 / N) * sum over n and classes c of (p_n[c] - [c = target_n])^2

    Args:
        probabilities: [N, C], each row summing to one.
        targets: The true class of each example, [N].

    References:
        Brier, "Verification of Forecasts Expressed in Terms of Probability", Monthly Weather Review, 1950.

    Example:
        >>> import torch
        >>> from pfge.metrics import brier_score
        >>> probabilities = torch.tensor([[0.5, 0.5], [0.25, 0.75]])
        >>> brier_score(probabilities, torch.tensor([0, 0]))  # (0.5 + 1.125) / 2
        0.8125
    """
    return score_examples(probabilities, targets).brier_score()


def expected_calibration_error(
    probabilities: Tensor, targets: Tensor, bins: int = 15, equal_mass: bool = False
) -> float:
    """Return the mean gap between confidence and accuracy over bins (ECE); see `reliability`.

        ECE = sum over bins b of (n_b / N) * |accuracy_b - confidence_b|

    Args:
        probabilities: [N, C], each row summing to one.
        targets: The true class of each example, [N].
        bins: How many bins divide the confidences.
        equal_mass: Whether bins hold equally many examples instead of being equally wide.

    References:
        Naeini, Cooper, Hauskrecht, "Obtaining Well Calibrated Probabilities Using Bayesian Binning",
        AAAI 2015. Nixon et al., "Measuring Calibration in Deep Learning", CVPR Workshops 2019, for bins of
        equal mass.

    Example:
        One example of confidence 0.75 is right, and one of confidence 0.625 is wrong: (0.25 + 0.625) / 2.

        >>> import torch
        >>> from pfge.metrics import expected_calibration_error
        >>> probabilities = torch.tensor([[0.75, 0.25], [0.375, 0.625]])
        >>> expected_calibration_error(probabilities, torch.tensor([0, 0]))
        0.4375
    """
    return score_examples(probabilities, targets).expected_calibration_error(bins, equal_mass)


def maximum_calibration_error(probabilities: Tensor, targets: Tensor, bins: int = 15) -> float:
    """Return the largest gap between confidence and accuracy of any bin of equal width (MCE).

        MCE = max over bins b that are not empty of |accuracy_b - confidence_b|

    Args:
        probabilities: [N, C], each row summing to one.
        targets: The true class of each example, [N].
        bins: How many bins divide the confidences from 0 to 1.

    References:
        Naeini, Cooper, Hauskrecht, "Obtaining Well Calibrated Probabilities Using Bayesian Binning",
        AAAI 2015.

    Example:
        >>> import torch
        >>> from pfge.metrics import maximum_calibration_error
        >>> probabilities = torch.tensor([[0.75, 0.25], [0.375, 0.625]])
        >>> maximum_calibration_error(probabilities, torch.tensor([0, 0]))
        0.625
    """
    return score_examples(probabilities, targets).maximum_calibration_error(bins)


def area_under_risk_coverage(probabilities: Tensor, targets: Tensor) -> float:
    """Return the mean, over k from 1 to N, of the error among the k most confident examples (AURC).

        AURC = (1 / N) * sum over k from 1 to N of (errors among the k most confident) / k

    It is low where confidence tells right predictions from wrong ones. Where equal confidences leave open
    which examples are the k most confident, it is the expected error.

    Args:
        probabilities: [N, C], each row summing to one.
        targets: The true class of each example, [N].

    References:
        Geifman, Uziel, El-Yaniv, "Bias-Reduced Uncertainty Estimation for Deep Neural Classifiers",
        ICLR 2019.

    Example:
        The most confident example is right, the other one wrong: (0 / 1 + 1 / 2) / 2.

        >>> import torch
        >>> from pfge.metrics import area_under_risk_coverage
        >>> probabilities = torch.tensor([[0.75, 0.25], [0.375, 0.625]])
        >>> area_under_risk_coverage(probabilities, torch.tensor([0, 0]))
        0.25
    """
    return score_examples(probabilities, targets).area_under_risk_coverage()


def reliability(
    probabilities: Tensor, targets: Tensor, bins: int = 15, equal_mass: bool = False
) -> Reliability:
    """Return confidence and accuracy in bins, for a reliability diagram.

    Args:
        probabilities: [N, C], each row summing to one.
        targets: The true class of each example.
        bins: How many bins divide the confidences from 0 to 1; each includes its upper bound.
        equal_mass: Whether bins hold equally many examples instead of being equally wide. Examples of
            equal confidence then count with their mean accuracy, so their order does not matter.

    References:
        DeGroot, Fienberg, "The Comparison and Evaluation of Forecasters", The Statistician, 1983.
        Guo, Pleiss, Sun, Weinberger, "On Calibration of Modern Neural Networks", ICML 2017.

    Example:
        >>> import torch
        >>> from pfge.metrics import reliability
        >>> probabilities = torch.tensor([[0.75, 0.25], [0.375, 0.625]])
        >>> found = reliability(probabilities, torch.tensor([0, 0]), bins=2)
        >>> found.count, found.confidence, found.accuracy
        ((0, 2), (0.0, 0.6875), (0.0, 0.5))
    """
    return score_examples(probabilities, targets).reliability(bins, equal_mass)
