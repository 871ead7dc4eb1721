"""What became of a picture on its way into a batch: the codes of ``Batch.status``."""

FINE = 0
UNREADABLE = 1  # zero pixels
REPLACED = 2  # by another picture of its class
PARTIAL = 3  # a JPEG that ends early, as far as it goes

NAMES = ("fine", "unreadable", "replaced", "partial")
