"""How many pictures of each class there are, and how many of them are right."""

import torch
from torch import Tensor
from torchmetrics import Metric


class ClassCounts(Metric):
    """Counts of each class, which add up over batches and ranks.

    Args:
        num_classes: Number of classes.
    """

    full_state_update = False
    right: Tensor
    total: Tensor

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        for name in ("right", "total"):
            zeros = torch.zeros(num_classes, dtype=torch.int64)
            self.add_state(name, zeros, dist_reduce_fx="sum")

    def update(self, scores: Tensor, targets: Tensor) -> None:
        """Add scores [N, num_classes] and targets int64 [N], -1 for none; N may be 0."""
        labels = targets.clamp(min=0)
        is_labelled = targets >= 0
        is_right = (scores.argmax(dim=1) == targets) & is_labelled
        self.right.index_add_(0, labels, is_right.long())
        self.total.index_add_(0, labels, is_labelled.long())

    def compute(self) -> tuple[Tensor, Tensor]:
        """Return the right and all pictures of each class, int64 [num_classes] both."""
        return self.right.clone(), self.total.clone()
