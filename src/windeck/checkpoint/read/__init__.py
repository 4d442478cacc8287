"""Reading of saved tensors: fetching, searching, comparing, verifying."""
