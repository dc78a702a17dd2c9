"""Run folders, their results, their verification, and the progress of work."""
