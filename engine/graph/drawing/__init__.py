"""Draws graphs as text, Mermaid and SVG."""
