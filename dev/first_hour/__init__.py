"""The first hour on a GPU: stages, their rows and the report (dev/gpu_first.py)."""
