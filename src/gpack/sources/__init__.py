"""Other people's model files, read with suspicion."""
