"""A run on disk: its agent, its records, its status, pictures, videos and exports."""
