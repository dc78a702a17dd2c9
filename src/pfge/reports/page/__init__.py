"""One self-contained HTML page of runs."""
