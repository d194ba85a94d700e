"""The paper's analyses of a run on disk."""
