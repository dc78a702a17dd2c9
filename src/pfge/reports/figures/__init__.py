"""What is drawn, and how."""
