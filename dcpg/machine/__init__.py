"""Memory and devices of this machine, and what a run needs of them."""
