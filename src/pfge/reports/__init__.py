"""Results for people; made from results alone."""
