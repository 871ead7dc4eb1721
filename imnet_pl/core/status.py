"""What became of a picture on its way into a batch: the codes of ``Batch.status``."""

FINE = 0
UNREADABLE = 1
