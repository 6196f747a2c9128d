"""Three failed logins in a row: a pattern that repeats."""
