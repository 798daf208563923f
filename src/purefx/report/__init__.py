"""Reports to a person: what a call shows, whether a system agrees with eager, what shares storage."""
