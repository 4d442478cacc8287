"""What is stored: keys, values, manifests, and tensors as boxes and chunks."""
