"""Many runs: a plan from a small TOML file, and engines that carry it out on one machine or on a Ray cluster."""
