"""Between subtasks: output gates and channels, input gates, partitioners."""
