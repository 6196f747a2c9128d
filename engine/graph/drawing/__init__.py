"""Graphs as text, Mermaid and SVG."""
