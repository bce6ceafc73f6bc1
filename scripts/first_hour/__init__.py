"""The first hour on a GPU: stages, their rows and the report (scripts/gpu_first.py)."""
