"""What a run leaves behind: its folder, its results, its logs and its progress."""
