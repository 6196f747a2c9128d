"""Every decision about one job: messages, results and ticks in, actions out. Pure."""
