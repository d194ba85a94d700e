"""What the paper looks at besides returns: stiffness, true and predicted values, wrong actions, levels."""
