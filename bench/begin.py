"""Begins a benchmark as scripts begin (scripts/startup.py), with their modules on Python's path:

    if __name__ == "__main__":
        from begin import startup
"""
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "scripts"))
import startup

startup.begin()
