"""What texts keep from step to step: a pool of memory, and for each text its blocks, shared with its forks."""
