"""Orders that are not paid in 15 minutes: state and timers per key."""
