"""Tools for people: what methods cost on this machine, and whether the installation is sound."""
