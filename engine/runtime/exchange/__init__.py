"""Between subtasks: output ports and channels, input gates, partitioners."""
