"""What runs inside a slot: task loop, gates, ports, operators."""
