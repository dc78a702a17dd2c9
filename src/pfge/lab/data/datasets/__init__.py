"""Data of any kind, as torch.utils.data.Dataset."""
