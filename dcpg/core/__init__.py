"""The paper: tensors in, tensors out. No files, no configuration, no method by name."""
