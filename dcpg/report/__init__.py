"""From runs to the paper's tables and figures, and a page."""
