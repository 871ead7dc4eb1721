"""How many pictures of each class there are, how many are right, and which classes the others are taken for."""

import torch
from torch import Tensor
from torchmetrics import Metric

_MOST_CLASSES = 2048  # whose confusions are counted: 32 MiB


class ClassCounts(Metric):
    """Counts of each class, which add up over batches and ranks.

    Args:
        num_classes: Number of classes.
    """

    full_state_update = False
    right: Tensor
    total: Tensor
    confusions: Tensor

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        for name in ("right", "total"):
            zeros = torch.zeros(num_classes, dtype=torch.int64)
            self.add_state(name, zeros, dist_reduce_fx="sum")
        # [class, guess]; none of a set with so many classes that they would not fit a GPU beside the network.
        sides = (num_classes, num_classes) if num_classes <= _MOST_CLASSES else (0, 0)
        zeros = torch.zeros(sides, dtype=torch.int64)
        self.add_state("confusions", zeros, dist_reduce_fx="sum")

    def update(self, scores: Tensor, targets: Tensor) -> None:
        """Add scores [N, num_classes] and targets int64 [N], -1 for none; N may be 0.

        A picture whose own score is -inf could not be read: it is wrong, and taken for no class.
        """
        labels = targets.clamp(min=0)
        is_labelled = targets >= 0
        guesses = scores.argmax(dim=1)
        is_right = (guesses == targets) & is_labelled
        self.right.index_add_(0, labels, is_right.long())
        self.total.index_add_(0, labels, is_labelled.long())

        if len(self.confusions):
            own = scores.gather(1, labels[:, None])[:, 0]
            is_seen = is_labelled & ~own.isneginf()
            self.confusions.index_put_(
                (labels, guesses), is_seen.long(), accumulate=True
            )

    def compute(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return the right and all pictures of each class, int64 [num_classes], and the confusions.

        Those are int64 [num_classes, num_classes], pictures by class and guess; [0, 0] above 2,048 classes.
        """
        return self.right.clone(), self.total.clone(), self.confusions.clone()
