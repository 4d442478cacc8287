"""Reading of saved tensors: fetching, scanning, searching, comparing, verifying."""
