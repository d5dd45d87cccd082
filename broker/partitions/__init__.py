"""Topics and the partitions this broker leads, with their background maintenance."""
