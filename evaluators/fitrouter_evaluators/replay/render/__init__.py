"""Reports as text and as one HTML page."""
