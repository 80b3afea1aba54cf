"""Export and import of queues: the commands ``holdfast export`` and ``holdfast import``."""
