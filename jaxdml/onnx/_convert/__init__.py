"""Converts a ModelProto to a graph, and collects every problem on the way."""
