"""The stored format: keys, values, manifests, and tensors as boxes and chunks."""
