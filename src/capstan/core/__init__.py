"""Values and rules with no input or output: errors, identifiers, time, JSON. Everything may import this package."""
