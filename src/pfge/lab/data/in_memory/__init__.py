"""Images that are held in memory."""
