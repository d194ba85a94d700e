"""The paper's tables and figures, and a web page, from runs."""
