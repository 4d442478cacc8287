"""What a scaler is made of: statistics of a sample, their errors, JSON."""
